"""What the page asks for and changes, as JSON. Every answer to a change comes after it is on disk."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..cleanse.decisions import Decision, Event
from ..cleanse.project import Project
from ..errors import BadInput
from .class_balance import class_warnings
from .judge_process import Judging
from .listing import LONGEST, Filter, Listing
from .sentences import explain

_MOST_ITEMS = 500  # in one answer
_JSON = dict[str, Any]


class Api:
    def __init__(self, project: Project, judging: Judging):
        self.project, self.judging, self.decisions = project, judging, project.decisions
        self.listing = Listing(project)
        self.labels = [str(label) for label in project.instances["label"]]
        self.regression = project.about["task"] == "regression"
        ranks = project.instances["harm_rank"].to_numpy()
        self.suggested = set(
            (ranks < (project.about.get("suggested", {}).get("m") or 0)).nonzero()[0].tolist()
        )

    @property
    def routes(self) -> list[Route]:
        return [
            _get("/api/project", self.about),
            _get("/api/list", self.list),
            _get("/api/items", self.items),
            _get(
                "/api/why",
                lambda query: explain(self.listing, _whole_number(query.get("id"), "id")),
            ),
            _get("/api/since", self.since),
            _get("/api/verdicts", lambda query: {"verdicts": self.project.verdicts()}),
            _get("/api/judge", lambda query: self.judging.status()),
            _post("/api/decide", self.decide),
            _post("/api/preview", self.preview),
            _post("/api/undo", lambda body: self._again(self.decisions.undo, body)),
            _post("/api/redo", lambda body: self._again(self.decisions.redo, body)),
            _post("/api/judge", self.judge),
            _post("/api/judge/cancel", self.cancel),
            Route("/picture/{part}/{id:int}", self.picture),
        ]

    # Reading

    def about(self, query: Mapping[str, str]) -> _JSON:
        about = self.project.about
        revision = (
            self.decisions.revision
        )  # before what it covers: what comes in between is told again, not left out
        current = self.decisions.current()
        return {
            "name": about["name"],
            "kind": about["kind"],
            "task": about["task"],
            "label": about["label"],
            "runs": about["runs"],
            "counts": about["counts"],
            "suggested": about.get("suggested", {}),
            "classes": self.project.classes,
            "layout": self.listing.layout,
            "columns": self.listing.columns,
            "decisions": _said(current, current),
        } | self._standing(revision, current, query.get("who", ""))

    def list(self, query: Mapping[str, str]) -> _JSON:
        """The ids alone, in order: the page keeps them, so that a list does not move under the hand of who decides."""
        ids = self.listing.ids(Filter.read(query), self.decisions.current())
        return {"ids": ids[:LONGEST], "total": len(ids)}

    def items(self, query: Mapping[str, str]) -> _JSON:
        ids = [_whole_number(id, "id") for id in query.get("ids", "").split(",")[:_MOST_ITEMS]]
        return {"items": [self.listing.item(id) for id in ids if id < len(self.labels)]}

    def since(self, query: Mapping[str, str]) -> _JSON:
        """What changed after a revision, and how the judgement is getting on."""
        return self._caught_up(query.get("revision"), query.get("who", "")) | {
            "judge": self.judging.status()
        }

    def picture(self, request: Request) -> Response:
        picture = self.project.picture(request.path_params["part"], request.path_params["id"])
        if picture is None:
            return JSONResponse({"error": "There is no such picture in this folder."}, 404)
        return Response(picture, media_type="image/png")

    # Changing

    def decide(self, body: _JSON) -> _JSON:
        changes = self._changes(body)
        self.decisions.record(
            changes, _text(body, "who"), _text(body, "why"), _text(body, "once") or None
        )
        return self._caught_up(body.get("revision"), _text(body, "who"))

    def preview(self, body: _JSON) -> _JSON:
        """What a bulk decision would do, before it is confirmed."""
        changes, current = self._changes(body), self.decisions.current()
        settled = {id: current[id] for id in changes if id in current}
        others = sum(settled[id] != changes[id] for id in settled)
        return {
            "count": len(changes),
            "changed": others,
            "warnings": self._warnings(current | changes),
        }

    def judge(self, body: _JSON) -> _JSON:
        if not any(
            action in ("remove", "relabel") for action, _ in self.decisions.current().values()
        ):
            raise BadInput(
                "Nothing is to be removed or relabelled yet, so there is nothing to judge. Decide about some instances first."
            )
        self.judging.start(
            _whole_number(body.get("seeds"), "number of seeds"), body.get("quick") is True
        )
        return self.judging.status()

    def cancel(self, body: _JSON) -> _JSON:
        self.judging.cancel()
        return self.judging.status()

    def _again(self, verb: Callable[..., Event | None], body: _JSON) -> _JSON:
        who = _text(body, "who")
        event = verb(who=who, once=_text(body, "once") or None)
        answer = self._caught_up(body.get("revision"), who) | {"event": None}
        if event is not None:
            first = min(event.changes)
            source = str(self.project.instances.at[first, "source"])
            answer["event"] = {
                "kind": event.kind,
                "count": len(event.changes),
                "first": first,
                "source": source,
            }
        return answer

    def _changes(self, body: _JSON) -> dict[int, Decision]:
        """{"changes": [[action, label, [ids]], ...]}"""
        try:
            changes = {
                int(id): (str(action), label)
                for action, label, ids in body["changes"]
                for id in ids
            }
        except (KeyError, TypeError, ValueError):
            raise BadInput("A decision is written as [[action, label, [ids]], ...].") from None
        for id, (action, label) in changes.items():
            if not 0 <= id < len(self.labels):
                raise BadInput(f"There is no training instance {id}; there are {len(self.labels)}.")
            if action == "relabel":
                self._check_label(label)
        return changes

    def _check_label(self, label: Any) -> None:
        if not self.regression and label not in self.project.classes:
            raise BadInput(f"{label!r} is not a class of this data.")
        try:
            fine = not self.regression or math.isfinite(float(label))
        except (TypeError, ValueError):
            fine = False
        if not fine:
            raise BadInput(
                f"{label!r} is not a number. The new value of a regression is one, such as 3.5."
            )

    def _caught_up(self, known: Any, who: str) -> _JSON:
        """Everything that happened after the revision that the page knows, by anybody; part of every answer to a change."""
        known = _whole_number(known, "revision")
        events = self.decisions.since(known)
        current = self.decisions.current()
        touched = {id for event in events for id in event.changes}
        revision = events[-1].revision if events else known
        return {"decisions": _said(touched, current)} | self._standing(revision, current, who)

    def _standing(self, revision: int, current: Mapping[int, Decision], who: str) -> _JSON:
        """How far the review is."""
        actions = [action for action, _ in current.values()]
        return {
            "revision": revision,
            "progress": {action: actions.count(action) for action in ("keep", "remove", "relabel")}
            | {
                "suggested": len(self.suggested),
                "suggested_decided": len(self.suggested & current.keys()),
            },
            "warnings": self._warnings(current),
            "undoable": self.decisions.undoable(who),
            "redoable": self.decisions.redoable(who),
        }

    def _warnings(self, decisions: Mapping[int, Decision]) -> Sequence[str]:
        return class_warnings(self.labels, decisions, regression=self.regression)


def _said(ids: Any, current: Mapping[int, Decision]) -> list[list[Any]]:
    """[[id, action, label], ...]"""
    return [[id, *current.get(id, ("undecided", None))] for id in ids]


def _get(path: str, answer: Callable[[Mapping[str, str]], _JSON]) -> Route:
    def endpoint(request: Request) -> Response:  # not async: Starlette runs it in a thread
        return JSONResponse(answer(request.query_params))

    return Route(path, endpoint, methods=["GET"])


def _post(path: str, answer: Callable[[_JSON], _JSON]) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise HTTPException(400, "The request is not a JSON object.")
        return JSONResponse(await run_in_threadpool(answer, body))

    return Route(path, endpoint, methods=["POST"])


def _whole_number(value: Any, name: str) -> int:
    try:
        found = int(value)
    except (TypeError, ValueError):
        found = -1
    if found < 0:
        raise BadInput(f"The {name} must be a whole number, not {str(value)[:50]!r}.")
    return found


def _text(body: _JSON, name: str) -> str:
    return str(body.get(name) or "")[:200]

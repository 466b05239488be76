"""What the page asks for and changes, as JSON. A change is answered when it is on disk."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..cleanse.decisions import Decision, Event
from ..cleanse.inputs.numbers import read_number
from ..cleanse.project import Project
from ..errors import BadInput
from .class_balance import class_warnings
from .judge_process import JudgeProcess
from .listing import MAX_LISTED, Filter, Listing
from .sentences import explain_instance

_MAX_ITEMS = 500  # in one answer
_MAX_FIELD = 200  # characters
_JSON = dict[str, Any]


class Api:
    """The answers to the page's requests about one project.

    A method that answers a GET takes the parameters of the address, one that answers a POST takes
    the JSON object that was sent. `who` is the name that a person gave on the page, or "": undo
    and redo are about that person's decisions, or anybody's.
    """

    def __init__(self, project: Project, judge_process: JudgeProcess):
        self.project, self.judge_process = project, judge_process
        self.decisions = project.decisions
        self.listing = Listing(project)
        self.labels = [str(label) for label in project.instances["label"]]
        self.regression = project.about["task"] == "regression"
        ranks = project.instances["harm_rank"].to_numpy()
        suggested = project.about.get("suggested", {}).get("m") or 0
        self.suggested = set((ranks < suggested).nonzero()[0].tolist())

    @property
    def routes(self) -> list[Route]:
        """Each address and the method that answers it."""
        undo = lambda body: self._repeat(self.decisions.undo, body)
        redo = lambda body: self._repeat(self.decisions.redo, body)
        return [
            _get("/api/project", self.describe_project),
            _get("/api/list", self.list_ids),
            _get("/api/items", self.list_items),
            _get("/api/why", self.explain),
            _get("/api/since", self.changes_since),
            _get("/api/verdicts", lambda query: {"verdicts": self.project.verdicts()}),
            _get("/api/judge", lambda query: self.judge_process.status()),
            _post("/api/decide", self.decide),
            _post("/api/preview", self.preview),
            _post("/api/undo", undo),
            _post("/api/redo", redo),
            _post("/api/judge", self.start_judging),
            _post("/api/judge/cancel", self.cancel_judging),
            Route("/picture/{part}/{id:int}", self.send_picture),
        ]

    # Reading

    def describe_project(self, query: Mapping[str, str]) -> _JSON:
        """Return what does not change, every decision so far, and how far the review is."""
        about = self.project.about
        # Read the revision first: a decision that comes in between is sent twice, not left out.
        revision = self.decisions.revision
        current = self.decisions.current()
        names = ("name", "kind", "task", "label", "runs", "counts")
        described = {name: about[name] for name in names} | {
            "suggested": about.get("suggested", {}),
            "classes": self.project.classes,
            "layout": self.listing.layout,
            "columns": self.listing.columns,
            "decisions": _decision_rows(current, current),
        }
        return described | self._review_state(revision, current, query.get("who", ""))

    def list_ids(self, query: Mapping[str, str]) -> _JSON:
        """Return the ids alone, in order. The page keeps them: a list must not move while used."""
        ids = self.listing.ids(Filter.from_query(query), self.decisions.current())
        return {"ids": ids[:MAX_LISTED], "total": len(ids)}

    def list_items(self, query: Mapping[str, str]) -> _JSON:
        """Return what the list shows of these instances."""
        ids = [_read_number(id, "id") for id in query.get("ids", "").split(",")[:_MAX_ITEMS]]
        return {"items": [self.listing.item(id) for id in ids if id < len(self.labels)]}

    def explain(self, query: Mapping[str, str]) -> _JSON:
        """Return why an instance is in the list."""
        return explain_instance(self.listing, _read_number(query.get("id"), "id"))

    def changes_since(self, query: Mapping[str, str]) -> _JSON:
        """Return what changed after a revision, and how the judgement is getting on."""
        changes = self._changes_since(query.get("revision"), query.get("who", ""))
        return changes | {"judge": self.judge_process.status()}

    def send_picture(self, request: Request) -> Response:
        """Send the picture of an instance as PNG."""
        picture = self.project.picture(request.path_params["part"], request.path_params["id"])
        if picture is None:
            return JSONResponse({"error": "There is no such picture in this folder."}, 404)
        return Response(picture, media_type="image/png")

    # Changing

    def decide(self, body: _JSON) -> _JSON:
        """Record decisions; the same `once` twice counts once."""
        changes = self._read_changes(body)
        who, why, once = (_read_text(body, name) for name in ("who", "why", "once"))
        self.decisions.record(changes, who, why, once or None)
        return self._changes_since(body.get("revision"), who)

    def preview(self, body: _JSON) -> _JSON:
        """Return what a bulk decision would do, before it is confirmed."""
        changes, current = self._read_changes(body), self.decisions.current()
        changed = sum(current[id] != changes[id] for id in changes if id in current)
        warnings = self._warnings(current | changes)
        return {"count": len(changes), "changed": changed, "warnings": warnings}

    def start_judging(self, body: _JSON) -> _JSON:
        """Start a judgement of the decisions."""
        actions = {action for action, _ in self.decisions.current().values()}
        if not actions & {"remove", "relabel"}:
            raise BadInput(
                "Nothing is to be removed or relabelled yet, so there is nothing to judge. "
                "Decide about some instances first."
            )
        seeds = _read_number(body.get("seeds"), "number of seeds")
        self.judge_process.start(seeds, body.get("quick") is True)
        return self.judge_process.status()

    def cancel_judging(self, body: _JSON) -> _JSON:
        """Stop the judgement that was started from the page."""
        self.judge_process.cancel()
        return self.judge_process.status()

    def _repeat(self, undo_or_redo: Callable[..., Event | None], body: _JSON) -> _JSON:
        who = _read_text(body, "who")
        event = undo_or_redo(who=who, once=_read_text(body, "once") or None)
        answer = self._changes_since(body.get("revision"), who) | {"event": None}
        if event is not None:
            first = min(event.changes)
            answer["event"] = {
                "kind": event.kind,
                "count": len(event.changes),
                "first": first,
                "source": str(self.project.instances.at[first, "source"]),
            }
        return answer

    def _read_changes(self, body: _JSON) -> dict[int, Decision]:
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
        if not self.regression:
            if label not in self.project.classes:
                raise BadInput(f"{label!r} is not a class of this data.")
            return
        number = read_number(label)
        if number is None or not math.isfinite(number):
            raise BadInput(
                f"{label!r} is not a number. The new value of a regression is one, such as 3.5."
            )

    def _changes_since(self, known: Any, who: str) -> _JSON:
        """All that anybody changed after the revision that the page knows.

        It is part of every answer to a change, so that a page is never behind after its own.
        """
        known = _read_number(known, "revision")
        events = self.decisions.since(known)
        current = self.decisions.current()
        touched = {id for event in events for id in event.changes}
        revision = events[-1].revision if events else known
        state = self._review_state(revision, current, who)
        return {"decisions": _decision_rows(touched, current)} | state

    def _review_state(self, revision: int, current: Mapping[int, Decision], who: str) -> _JSON:
        """How far the review is."""
        actions = [action for action, _ in current.values()]
        progress = {action: actions.count(action) for action in ("keep", "remove", "relabel")}
        progress["suggested"] = len(self.suggested)
        progress["suggested_decided"] = len(self.suggested & current.keys())
        return {
            "revision": revision,
            "progress": progress,
            "warnings": self._warnings(current),
            "undoable": self.decisions.undoable(who),
            "redoable": self.decisions.redoable(who),
        }

    def _warnings(self, decisions: Mapping[int, Decision]) -> Sequence[str]:
        return class_warnings(self.labels, decisions, regression=self.regression)


def _decision_rows(ids: Iterable[int], current: Mapping[int, Decision]) -> list[list[Any]]:
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


def _read_number(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise BadInput(f"The {name} must be a whole number, not {str(value)[:50]!r}.")
    return number


def _read_text(body: _JSON, name: str) -> str:
    return str(body.get(name) or "")[:_MAX_FIELD]

"""What the page asks for and changes, as JSON.

A request is read whole and checked before anything is done; a change is answered when it is on
disk.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..cleaning.chats import CHATS
from ..cleaning.decisions import TRAIN, VALIDATION, Decision, Event, group_by_decision
from ..cleaning.findings import is_share, name_measure
from ..cleaning.project import Project
from ..cleaning.reopen import needed_code
from ..errors import CorruptFile, InvalidInput
from .answers import JSONAnswer
from .class_balance import class_warnings
from .judge_process import JudgeProcess
from .label_checks import LabelChecks
from .limits import MAX_BODY_BYTES
from .listing import MAX_LISTED, Filter, Listing
from .originals import Originals
from .recommended import PICTURE, RecommendedPlan
from .requests import (
    CancelRequest,
    Change,
    DecideRequest,
    JudgeRequest,
    PreviewRequest,
    UndoRequest,
    describe,
    is_learnable,
    parse_count,
    query_count,
    query_text,
    read_request,
)
from .sentences import explain_instance

_MAX_ITEMS = 500  # in one answer
_JSON = dict[str, Any]
_Request = TypeVar("_Request")


class Api:
    """The answers to the page's requests about one project.

    A method that answers a GET takes the parameters of the address, one that answers a POST takes
    a request of requests.py. `who` is the name that a person gave on the page, or "": undo and
    redo are about that person's decisions, or anybody's.
    """

    def __init__(self, project: Project, judge_process: JudgeProcess, *, body_seconds: float):
        self.project, self.judge_process = project, judge_process
        self.body_seconds = body_seconds
        self.decisions = project.decisions
        self.listing = Listing(project)
        self.checks = LabelChecks(self.listing)
        self.labels = [str(label) for label in project.instances["label"]]
        self.regression = project.about["task"] == "regression"
        self.plan = RecommendedPlan(project)
        self.originals = Originals(project)

    @property
    def routes(self) -> list[Route]:
        """Each address and the method that answers it."""
        undo = lambda request: self._repeat(self.decisions.undo, request)
        redo = lambda request: self._repeat(self.decisions.redo, request)
        return [
            _get("/api/project", self.describe_project),
            _get("/api/list", self.list_ids),
            _get("/api/items", self.list_items),
            _get("/api/why", self.explain),
            _get("/api/since", self.changes_since),
            _get("/api/verdicts", lambda query: {"verdicts": self.project.verdicts()}),
            _get("/api/judge", lambda query: self.judge_process.status()),
            self._post("/api/decide", DecideRequest, self.decide),
            self._post("/api/plan", UndoRequest, self.take_plan),
            self._post("/api/preview", PreviewRequest, self.preview),
            self._post("/api/undo", UndoRequest, undo),
            self._post("/api/redo", UndoRequest, redo),
            self._post("/api/judge", JudgeRequest, self.start_judging),
            self._post("/api/judge/cancel", CancelRequest, self.cancel_judging),
            Route(PICTURE, self.send_plans),
            Route("/picture/{part}/{id}", self.send_picture),
            Route("/picture/original/{part}/{id}", self.send_original),
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
            "plan": self.plan.describe(),
            "measure": name_measure(about),
            "unit": "\u00a0points" if is_share(about) else "",
            "classes": self.project.classes,
            "layout": self.listing.layout,
            "origins": about.get("origins", []),
            "token_scale": self.listing.tokens.scale if self.listing.layout == CHATS else 0,
            "columns": self.listing.columns,
            "trusted": about.get("checked_labels", {}).get("trusted", False),
            "decisions": self._decision_rows({TRAIN: current, VALIDATION: self._checked()}),
        }
        return described | self._review_state(revision, current, query_text(query, "who"))

    def list_ids(self, query: Mapping[str, str]) -> _JSON:
        """Return the ids alone, in order. The page keeps them: a list must not move while used."""
        wanted = Filter.from_query(query)
        if wanted.tab == VALIDATION:
            ids = self.checks.list_numbers(wanted, self._checked())
        else:
            ids = self.listing.ids(wanted, self.decisions.current())
        return {"ids": ids[:MAX_LISTED], "total": len(ids)}

    def list_items(self, query: Mapping[str, str]) -> _JSON:
        """Return what the list shows of these instances."""
        ids = [parse_count(id, "id") for id in query.get("ids", "").split(",")[:_MAX_ITEMS]]
        item = lambda id: (self.listing if id < len(self.labels) else self.checks).item(id)
        return {"items": [item(id) for id in ids if id < self._count]}

    def explain(self, query: Mapping[str, str]) -> _JSON:
        """Return why an instance is in the list."""
        id = query_count(query, "id")
        if len(self.labels) <= id < self._count:
            return self.checks.explain(id)
        return explain_instance(self.listing, id)

    def changes_since(self, query: Mapping[str, str]) -> _JSON:
        """Return what changed after a revision, and how the judgement is getting on."""
        known, who = query_count(query, "revision"), query_text(query, "who")
        self._check_revision(known)
        return self._changes_since(known, who) | {"judge": self.judge_process.status()}

    def send_picture(self, request: Request) -> Response:
        """Send a small copy of the picture of an instance as PNG."""
        return _send_picture(request, self.project.picture)

    def send_original(self, request: Request) -> Response:
        """Send the picture of an instance in its own size as PNG."""
        return _send_picture(request, self.originals.read)

    def send_plans(self, request: Request) -> Response:
        """Send the picture of the plans that competed as SVG."""
        picture = self.plan.draw()
        if picture is None:
            return JSONAnswer({"error": "There is no such picture in this folder."}, 404)
        return Response(picture, media_type="image/svg+xml")

    # Changing

    def decide(self, request: DecideRequest) -> _JSON:
        """Record decisions; the same `once` twice counts once."""
        changes = self._check_changes(request.changes)
        self._check_revision(request.revision)
        part, changes = self.checks.locate(changes)
        self.decisions.record(changes, request.who, request.why, request.once or None, part)
        return self._changes_since(request.revision, request.who)

    def take_plan(self, request: UndoRequest) -> _JSON:
        """Decide as the recommended plan says, in one step; what a person decided stays."""
        if not self.plan.changes:
            raise InvalidInput(
                "It is recommended to change nothing, so there is no plan to accept."
            )
        groups = group_by_decision(self.plan.changes)
        changes = self._check_changes([Change(*group) for group in groups])
        self._check_revision(request.revision)
        who, once = request.who, request.once or None
        event = self.decisions.record_undecided(changes, who, "the recommended plan", once)
        taken = 0 if event is None else len(event.changes)
        return self._changes_since(request.revision, who) | {"taken": taken}

    def preview(self, request: PreviewRequest) -> _JSON:
        """Return what a bulk decision would do, before it is confirmed."""
        part, changes = self.checks.locate(self._check_changes(request.changes))
        current = self.decisions.current(part)
        changed = sum(current[id] != changes[id] for id in changes if id in current)
        warnings = self._warnings(current | changes) if part == TRAIN else []
        return {"count": len(changes), "changed": changed, "warnings": warnings}

    def start_judging(self, request: JudgeRequest) -> _JSON:
        """Start a judgement of the decisions."""
        actions = {action for action, _ in self.decisions.current().values()}
        if not actions & {"remove", "relabel"}:
            raise InvalidInput(
                "Nothing is to be removed or relabelled yet, so there is nothing to judge. "
                "Decide about some instances first, or accept the recommended plan."
            )
        self._check_code_trusted()
        self.judge_process.start(request.seeds, request.quick)
        return self.judge_process.status()

    def _check_code_trusted(self) -> None:
        """The page cannot choose which code runs: only the command line of the review can."""
        try:
            needed = needed_code(self.project)
        except CorruptFile:
            return  # the judgement says what is wrong with it
        missing = [entry for entry in needed if entry not in self.judge_process.trust_code]
        if missing:
            flags = " ".join(f"--trust-code {entry}" for entry in needed)
            raise InvalidInput(
                f"Judging this project runs code that is not a part of dross: "
                f"{', '.join(missing)}. Read it. If you trust it, stop dross review and start it "
                f"again with {flags}."
            )

    def cancel_judging(self, request: CancelRequest) -> _JSON:
        """Stop the judgement that was started from the page."""
        self.judge_process.cancel()
        return self.judge_process.status()

    def _repeat(self, undo_or_redo: Callable[..., Event | None], request: UndoRequest) -> _JSON:
        self._check_revision(request.revision)
        event = undo_or_redo(who=request.who, once=request.once or None)
        answer = self._changes_since(request.revision, request.who) | {"event": None}
        if event is not None:
            first = self.checks.number(event.part, min(event.changes))
            answer["event"] = {
                "kind": event.kind,
                "count": len(event.changes),
                "first": first,
                "source": self.checks.source(first),
            }
        return answer

    def _check_changes(self, changes: Sequence[Change]) -> dict[int, Decision]:
        """Check that instances and labels exist, and that no decisions contradict each other."""
        decisions: dict[int, Decision] = {}
        for change in changes:
            if change.label is not None:
                self._check_label(change.label)
            decision = (change.action, change.label)
            for id in change.ids:
                if id >= self._count:
                    raise InvalidInput(f"There is no instance {id}; there are {self._count}.")
                if decisions.setdefault(id, decision) != decision:
                    raise InvalidInput(f"Two decisions about instance {id} contradict each other.")
        return decisions

    def _check_label(self, label: str) -> None:
        if not self.regression:
            if label not in self.project.classes:
                raise InvalidInput(f"{describe(label)} is not a class of this data.")
        elif not is_learnable(label):
            raise InvalidInput(
                f"{describe(label)} is not a number that a model can learn. Give the new value "
                "as a number, such as 3.5."
            )

    def _check_revision(self, known: int) -> None:
        latest = self.decisions.revision
        if known > latest:
            raise InvalidInput(
                f"This page knows revision {known}, but {self.decisions.path.name} ends with "
                f"{latest}: the file was replaced. Reload the page."
            )

    def _changes_since(self, known: int, who: str) -> _JSON:
        """All that anybody changed after the revision that the page knows.

        It is part of every answer to a change, so that a page is never behind after its own.
        """
        events = self.decisions.since(known)
        touched: dict[str, set[int]] = {TRAIN: set(), VALIDATION: set()}
        for event in events:
            touched[event.part].update(event.changes)
        revision = events[-1].revision if events else known
        state = self._review_state(revision, self.decisions.current(), who)
        return {"decisions": self._decision_rows(touched)} | state

    @property
    def _count(self) -> int:
        """How many instances the page numbers, of both parts."""
        return len(self.labels) + len(self.checks)

    def _checked(self) -> dict[int, Decision]:
        """What was said about labels that are there."""
        decided = self.decisions.current(VALIDATION)
        return {id: said for id, said in decided.items() if id < len(self.checks)}

    def _decision_rows(self, ids: Mapping[str, Iterable[int]]) -> list[list[Any]]:
        """[[number, action, label], ...] of some ids of each part."""
        current = {TRAIN: self.decisions.current(), VALIDATION: self._checked()}
        undecided = ("undecided", None)
        return [
            [self.checks.number(part, id), *current[part].get(id, undecided)]
            for part, chosen in ids.items()
            for id in chosen
        ]

    def _review_state(self, revision: int, current: Mapping[int, Decision], who: str) -> _JSON:
        """How far the review is."""
        actions = [action for action, _ in current.values()]
        progress = {action: actions.count(action) for action in ("keep", "remove", "relabel")}
        progress["suggested"] = len(self.plan.changes)
        progress["suggested_decided"] = len(self.plan.changes.keys() & current.keys())
        progress["suggested_followed"] = self.plan.count_followed(current)
        checked = self._checked()
        wanted = self.checks.wanted
        progress["checked"] = len(checked)
        progress["to_check"] = len(wanted)
        progress["to_check_decided"] = len(checked.keys() & wanted)
        return {
            "revision": revision,
            "progress": progress,
            "warnings": self._warnings(current),
            "undoable": self.decisions.undoable(who),
            "redoable": self.decisions.redoable(who),
        }

    def _warnings(self, decisions: Mapping[int, Decision]) -> Sequence[str]:
        one_class = self.project.about["task"] != "classification"
        return class_warnings(self.labels, decisions, regression=one_class)

    def _post(self, path: str, kind: type[_Request], answer: Callable[[_Request], _JSON]) -> Route:
        def read_and_answer(body: bytes) -> Response:
            return JSONAnswer(answer(read_request(kind, body)))

        async def endpoint(request: Request) -> Response:
            body = await _read_body(request, self.body_seconds)
            return await run_in_threadpool(read_and_answer, body)

        return Route(path, endpoint, methods=["POST"])


async def _read_body(request: Request, seconds: float) -> bytes:
    """All of the body, if it is not too long and does not take too long."""
    pieces, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_BODY_BYTES:
                    raise HTTPException(413, f"A request is limited to {MAX_BODY_BYTES:,} bytes.")
    except TimeoutError:
        sentence = f"The rest of the request did not come within {seconds:g} s."
        raise HTTPException(408, sentence, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(400, "The request ended before it was complete.") from None
    return b"".join(pieces)


def _get(path: str, answer: Callable[[Mapping[str, str]], _JSON]) -> Route:
    def endpoint(request: Request) -> Response:  # not async: Starlette runs it in a thread
        return JSONAnswer(answer(request.query_params))

    return Route(path, endpoint, methods=["GET"])


def _send_picture(request: Request, read: Callable[[str, int], bytes | None]) -> Response:
    part, id = request.path_params["part"], request.path_params["id"]
    is_id = id.isascii() and id.isdecimal() and len(id) < 10
    picture = read(part, int(id)) if is_id else None
    if picture is None:
        return JSONAnswer({"error": "There is no such picture in this folder."}, 404)
    return Response(picture, media_type="image/png")

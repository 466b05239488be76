"""The page's requests and their answers, as JSON.

Every request has a schema here. It is read whole and checked before anything is done; a change is
answered when it is on disk.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .._text import to_json
from ..cleaning.decisions import TRAIN, VALIDATION, Decision, Event
from ..cleaning.findings import describe_doubted
from ..cleaning.measures import tabulate_verdict
from ..cleaning.project import Project, needed_code
from ..cleaning.task import CLASSIFICATION, REGRESSION
from ..errors import CorruptFile, InvalidInput
from .judge_process import JudgeProcess
from .label_checks import LabelChecks
from .listing import MAX_LISTED, Filter, Listing, read_original
from .plan import FIGURE, RecommendedPlan, class_warnings
from .sentences import explain_instance

MAX_BODY_BYTES = 8 * 2**20  # decisions about a million instances
_MAX_ITEMS = 500  # in one answer
_JSON = dict[str, Any]
_Request = TypeVar("_Request", bound=msgspec.Struct)

_Count = Annotated[int, Meta(ge=0, lt=10**15)]
_ShortText = Annotated[str, Meta(max_length=200)]


class Change(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One action about some instances; whether they exist is checked later."""

    action: Literal["keep", "remove", "relabel", "undecided"]
    label: str | None
    ids: Annotated[list[_Count], Meta(min_length=1)]


_Changes = Annotated[list[Change], Meta(min_length=1)]


class EmptyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing but the address."""


class PreviewRequest(EmptyRequest, frozen=True):
    """What would these decisions do?"""

    changes: _Changes


class UndoRequest(EmptyRequest, frozen=True, kw_only=True):
    """Undo or redo the latest decision of a person ("": of anyone)."""

    revision: _Count  # the latest that the page has
    who: _ShortText = ""
    once: _ShortText = ""


class DecideRequest(UndoRequest, frozen=True, kw_only=True):
    """Decide on some instances."""

    changes: _Changes
    why: _ShortText = ""


class JudgeRequest(EmptyRequest, frozen=True):
    """Start a judgment."""

    seeds: _Count
    quick: bool = False


class ProjectQuery(msgspec.Struct, frozen=True):
    """The project, as one person sees it."""

    who: _ShortText = ""


class SinceQuery(ProjectQuery, frozen=True, kw_only=True):
    """What changed after a revision?"""

    revision: _Count


class ItemsQuery(msgspec.Struct, frozen=True):
    """Several instances, as a list shows them."""

    ids: str  # with commas between them


class WhyQuery(msgspec.Struct, frozen=True):
    """One instance, with all that is known about it."""

    id: _Count


class ImageQuery(msgspec.Struct, frozen=True):
    """The image of an instance."""

    part: Literal["train", "validation", "test"]
    id: _Count


class JSONAnswer(JSONResponse):
    """An answer that every browser can read, whatever the data hold."""

    def render(self, content: Any) -> bytes:
        """Return the content as bytes."""
        return to_json(content).encode()


class Api:
    """The answers to the page's requests about one project.

    `who` is the name that a person gave on the page, or "": undo and redo are about that person's
    decisions, or anyone's.
    """

    def __init__(self, project: Project, judge_process: JudgeProcess):
        self.project = project
        self.judge_process = judge_process
        self.decisions = project.decisions
        self.listing = Listing(project)
        self.checks = LabelChecks(self.listing)
        self.labels = [str(label) for label in project.table["label"]]
        self.regression = project.task is REGRESSION
        self.plan = RecommendedPlan(project)

    @property
    def routes(self) -> list[Route]:
        """Each address and the method that answers it."""
        undo = lambda request: self._repeat(self.decisions.undo, request)
        redo = lambda request: self._repeat(self.decisions.redo, request)
        return [
            _get("/api/project", ProjectQuery, self.describe_project),
            _get("/api/list", Filter, self.list_ids),
            _get("/api/items", ItemsQuery, self.list_items),
            _get("/api/why", WhyQuery, self.explain),
            _get("/api/since", SinceQuery, self.changes_since),
            _get("/api/verdicts", EmptyRequest, self.list_verdicts),
            _get("/api/judge", EmptyRequest, lambda query: self.judge_process.status()),
            _post("/api/decide", DecideRequest, self.decide),
            _post("/api/plan", UndoRequest, self.take_plan),
            _post("/api/preview", PreviewRequest, self.preview),
            _post("/api/undo", UndoRequest, undo),
            _post("/api/redo", UndoRequest, redo),
            _post("/api/judge", JudgeRequest, self.start_judging),
            _post("/api/judge/cancel", EmptyRequest, self.cancel_judging),
            _get(FIGURE, EmptyRequest, self.send_plans),
            _get("/image/{part}/{id}", ImageQuery, self.send_image),
            _get("/image/original/{part}/{id}", ImageQuery, self.send_original),
        ]

    # Reading

    def describe_project(self, query: ProjectQuery) -> _JSON:
        """Return what does not change, every decision so far, and the progress of the review."""
        info = self.project.info
        # Read the revision first: a decision that comes in between is sent twice, not left out.
        revision = self.decisions.revision
        current = self.decisions.current()
        names = ("name", "kind", "task", "label", "runs", "counts")
        described = {name: getattr(info, name) for name in names} | {
            "plan": self.plan.describe(),
            "doubted": None if (doubted := describe_doubted(info)) is None else doubted.detail,
            "measure": info.measure,
            "unit": "\u00a0points" if info.is_share else "",
            "classes": self.project.classes,
            "layout": self.listing.layout,
            "origins": info.origins,
            "token_scale": self.listing.token_scale,
            "columns": self.listing.columns,
            "trusted": info.options is not None and info.options.validation_is_clean,
            "decisions": self._decision_rows({TRAIN: current, VALIDATION: self._checked()}),
        }
        return described | self._review_state(revision, current, query.who)

    def list_ids(self, wanted: Filter) -> _JSON:
        """Return the ids alone, in order. The page keeps them: a list must not move while used."""
        if wanted.tab == VALIDATION:
            ids = self.checks.list_numbers(wanted, self._checked())
        else:
            ids = self.listing.ids(wanted, self.decisions.current())
        return {"ids": ids[:MAX_LISTED], "total": len(ids)}

    def list_items(self, query: ItemsQuery) -> _JSON:
        """Return what the list shows of these instances."""
        with _refuse_invalid():
            ids = msgspec.convert(query.ids.split(",")[:_MAX_ITEMS], list[_Count], strict=False)
        item = lambda id: (self.listing if id < len(self.labels) else self.checks).item(id)
        return {"items": [item(id) for id in ids if id < self._instance_count]}

    def explain(self, query: WhyQuery) -> _JSON:
        """Return why an instance is in the list."""
        if len(self.labels) <= query.id < self._instance_count:
            return self.checks.explain(query.id)
        return explain_instance(self.listing, query.id)

    def list_verdicts(self, query: EmptyRequest) -> _JSON:
        """Return all verdicts, each with its measures in words."""
        verdicts = self.project.verdicts()
        return {"verdicts": [each | {"measures": tabulate_verdict(each)} for each in verdicts]}

    def changes_since(self, query: SinceQuery) -> _JSON:
        """Return what changed after a revision, and how the judgment is getting on."""
        self._check_revision(query.revision)
        changes = self._changes_since(query.revision, query.who)
        return changes | {"judge": self.judge_process.status()}

    def send_image(self, query: ImageQuery) -> Response:
        """Send a small copy of the image of an instance as PNG."""
        return _image(self.project.image(query.part, query.id), "image/png")

    def send_original(self, query: ImageQuery) -> Response:
        """Send the image of an instance in its own size as PNG."""
        return _image(read_original(self.project, query.part, query.id), "image/png")

    def send_plans(self, query: EmptyRequest) -> Response:
        """Send the figure of the plans that competed as SVG."""
        return _image(self.plan.figure, "image/svg+xml")

    # Changing

    def decide(self, request: DecideRequest) -> _JSON:
        """Record decisions; the same `once` twice counts once."""
        changes = self._check_changes(request.changes)
        self._check_revision(request.revision)
        part, changes = self.checks.locate(changes)
        self.decisions.record(changes, request.who, request.why, request.once or None, part)
        return self._changes_since(request.revision, request.who)

    def take_plan(self, request: UndoRequest) -> _JSON:
        """Accept the recommended plan in one step; a person's own decisions stay."""
        if not self.plan.changes:
            raise InvalidInput(
                "The recommendation is to change nothing, so there is no plan to accept."
            )
        self._check_revision(request.revision)
        event = self.decisions.record_undecided(
            self.plan.changes, request.who, "the recommended plan", request.once or None
        )
        taken = 0 if event is None else len(event.changes)
        return self._changes_since(request.revision, request.who) | {"taken": taken}

    def preview(self, request: PreviewRequest) -> _JSON:
        """Return what a bulk decision would do, before it is confirmed."""
        part, changes = self.checks.locate(self._check_changes(request.changes))
        current = self.decisions.current(part)
        changed = sum(current[id] != changes[id] for id in changes if id in current)
        warnings = self._warnings(current | changes) if part == TRAIN else []
        return {"count": len(changes), "changed": changed, "warnings": warnings}

    def start_judging(self, request: JudgeRequest) -> _JSON:
        """Start a judgment of the decisions."""
        actions = {action for action, _ in self.decisions.current().values()}
        if not actions & {"remove", "relabel"}:
            raise InvalidInput(
                "No instance is marked for removal or relabeling, so there is nothing to judge. "
                "Decide on some instances first, or accept the recommended plan."
            )
        self._check_code_trusted()
        self.judge_process.start(request.seeds, request.quick)
        return self.judge_process.status()

    def _check_code_trusted(self) -> None:
        """The page cannot choose which code runs: only the command line of the review can."""
        try:
            needed = needed_code(self.project)
        except CorruptFile:
            return  # the judgment says what is wrong with it
        missing = [entry for entry in needed if entry not in self.judge_process.trust_code]
        if missing:
            flags = " ".join(f"--trust-code {entry}" for entry in needed)
            raise InvalidInput(
                f"Judging this project runs code that is not part of dross: {', '.join(missing)}. "
                "Read that code. If you trust it, stop dross review and start it again with "
                f"{flags}."
            )

    def cancel_judging(self, request: EmptyRequest) -> _JSON:
        """Stop the judgment that was started from the page."""
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
            label = change.label
            if label is not None and self.project.task.read(label, self.project.classes) is None:
                what = (
                    "number that a model can predict" if self.regression else "class in this data"
                )
                raise InvalidInput(f"{label!r:.60} is not a {what}.")
            decision = (change.action, label)
            for id in change.ids:
                if id >= self._instance_count:
                    raise InvalidInput(
                        f"There is no instance {id}: ids run from 0 to {self._instance_count - 1}."
                    )
                if decisions.setdefault(id, decision) != decision:
                    raise InvalidInput(f"Two decisions about instance {id} contradict each other.")
        return decisions

    def _check_revision(self, known: int) -> None:
        latest = self.decisions.revision
        if known > latest:
            raise InvalidInput(
                f"This page is at revision {known}, but {self.decisions.path.name} ends at "
                f"revision {latest}: the file was replaced. Reload the page."
            )

    def _changes_since(self, known: int, who: str) -> _JSON:
        """All that anyone changed after the revision that the page has.

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
    def _instance_count(self) -> int:
        """How many instances the page numbers, of both sets."""
        return len(self.labels) + len(self.checks)

    def _checked(self) -> dict[int, Decision]:
        """The decisions about labels that are there."""
        decided = self.decisions.current(VALIDATION)
        return {id: said for id, said in decided.items() if id < len(self.checks)}

    def _decision_rows(self, ids: Mapping[str, Iterable[int]]) -> list[list[Any]]:
        """[[number, action, label], ...] of some ids of each set."""
        current = {TRAIN: self.decisions.current(), VALIDATION: self._checked()}
        undecided = ("undecided", None)
        return [
            [self.checks.number(part, id), *current[part].get(id, undecided)]
            for part, chosen in ids.items()
            for id in chosen
        ]

    def _review_state(self, revision: int, current: Mapping[int, Decision], who: str) -> _JSON:
        """The progress of the review."""
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
        one_class = self.project.task is not CLASSIFICATION
        return class_warnings(self.labels, decisions, regression=one_class)


def _get(path: str, kind: type[_Request], answer: Callable[[_Request], _JSON | Response]) -> Route:
    def endpoint(request: Request) -> Response:  # not async: Starlette runs it in a thread
        with _refuse_invalid():
            query = msgspec.convert(
                {**request.query_params, **request.path_params}, kind, strict=False
            )
        found = answer(query)
        return found if isinstance(found, Response) else JSONAnswer(found)

    return Route(path, endpoint, methods=["GET"])


def _post(path: str, kind: type[_Request], answer: Callable[[_Request], _JSON]) -> Route:
    def read_and_answer(body: bytes) -> Response:
        with _refuse_invalid():
            sent = msgspec.json.decode(body, type=kind)
        return JSONAnswer(answer(sent))

    async def endpoint(request: Request) -> Response:
        body = await _read_body(request)
        return await run_in_threadpool(read_and_answer, body)

    return Route(path, endpoint, methods=["POST"])


@contextmanager
def _refuse_invalid() -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"The request is not valid: {error}.") from None


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise HTTPException(413, f"A request is limited to {MAX_BODY_BYTES:,} bytes.")
    except ClientDisconnect:
        raise HTTPException(400, "The request ended before it was complete.") from None
    return bytes(body)


def _image(raw: bytes | None, kind: str) -> Response:
    if raw is None:
        raise HTTPException(404, "There is no such image in this folder.")
    return Response(raw, media_type=kind)

"""`postroom dead`: the jobs that were given up."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from postroom.consumers.choosing import meant
from postroom.consumers.dead import Selection, as_seen, carriers_of, discarded, grouped, letters, places
from postroom.consumers.known import carriers_known, sent_and_gone
from postroom.consumers.ledger import Ledger
from postroom.consumers.loading import load_jobs
from postroom.consumers.lost import LostPlace
from postroom.consumers.replay import Fate, Replay, Unproven, mark

from .connect import broker, database
from .exits import NO
from .letters import GROUP_COLUMNS, LETTER_COLUMNS, group_json, group_row, letter_json, letter_row, letter_text
from .options import Settings, as_json, connections, duration, filled
from .output import echo_json, progress, table
from .unlisted import tell_what_is_gone, tell_what_is_unlisted

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter
    from postroom.consumers.dead import Letter, Place

__all__ = ["command"]

NONE = "no dead letters"
CONFLICT = (
    "in conflict means: the key is that of another job, with another payload. Discard this one, and enqueue it under a key of its own; or, "
    "if the other is the wrong one and was given up, discard that, which frees the key, and replay this"
)

GONE = "gone means: not a dead letter any more, or on its way again since this run began, as a replay does it; left alone"
LOST = "lost means: the letter is gone, and the outbox does not have the message any more. Discard it, and enqueue the work anew"

Row = TypeVar("Row")
Json: TypeAlias = "dict[str, Any]"
Cells: TypeAlias = "Sequence[object]"


@click.group(
    epilog="""\b
Examples:
  postroom dead list --by-error                      what goes wrong, and how often
  postroom dead show order-4711                      all about one, payload included
  postroom dead replay --type send-receipt           when the cause is mended; one goes first
  postroom dead discard order-4711 --reason "a test order"
"""
)
def command() -> None:
    """Jobs that were given up: dead letters of the queues, and rows of the outbox that the broker refused (parked).

    When a dead letter is lost (purged, or its topic's retention has passed) its job is given up still, and found by its name; and without it, when
    it holds up the jobs behind it in an ordered queue. What the outbox has of it can be replayed; and it can be discarded, which frees its key.

    All of it may be stopped anywhere and run again: no job is replayed twice, and none gets lost.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the options of one run mean: the open places, and which of their letters."""

    engine: Engine
    adapter: Adapter
    places: Sequence[Place]
    selection: Selection

    def letters(self) -> Iterator[tuple[Place, Letter]]:
        """Read them."""
        return letters(self.places, self.selection)

    def meant(self) -> Iterator[tuple[Place, Letter]]:
        """Read them to act on them. Raises Ambiguous for a name that may be meant in two ways."""
        return meant(self.places, self.selection)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The options by which letters are chosen, as they were given."""

    names: tuple[str, ...]
    queues: tuple[str, ...]
    types: tuple[str, ...]
    error: str
    source: str | None
    application: str | None
    limit: int | None

    def require(self, *, everything: bool | None = None) -> None:
        """Refuse to act on all letters of all queues unless that was said; None: it can't be said."""
        if not (everything or self.names or self.queues or self.types or self.error or self.source):
            or_all = "" if everything is None else ", or say --all"
            raise click.UsageError(f"which ones? Name them (id or key), or choose with --queue, --type, --error or --source{or_all}")


def _choosing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a subcommand the options by which letters are chosen, as one `choice`, and where to look, as `settings`."""

    @click.argument("names", nargs=-1, metavar="[ID|KEY]...")
    @click.option(
        "--queue", "queues", type=filled, multiple=True, metavar="QUEUE", help="Only this queue's; may be repeated.  [default: all that are known]"
    )
    @click.option("--type", "types", multiple=True, metavar="TYPE", help="Only jobs of this type; may be repeated.")
    @click.option("--error", default="", metavar="TEXT", help="Only those whose error has this text in it.")
    @click.option(
        "--source",
        type=click.Choice(["queue", "outbox", "ledger"]),
        help="Only dead letters, or parked rows, or jobs whose letter is lost: without a name those that hold up an ordered queue.",
    )
    @click.option(
        "--app", "application", type=filled, metavar="MODULE:JOBS", help="Look in this application's queues: for a broker that can't list its own."
    )
    @click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
    @connections
    @wraps(command)
    def chosen(settings: Settings, /, **options: Any) -> Any:  # noqa: ANN401 - what click hands over
        choice = Choice(**{name: options.pop(name) for name in Choice.__dataclass_fields__})
        return command(settings, choice, **options)

    return chosen


@contextmanager
def _open(settings: Settings, choice: Choice) -> Iterator[Chosen]:
    selection = Selection(names=frozenset(choice.names), types=frozenset(choice.types), error=choice.error, limit=choice.limit)
    with ExitStack() as opened:
        engine = opened.enter_context(database(settings))
        adapter = opened.enter_context(broker(settings))
        yield Chosen(engine=engine, adapter=adapter, places=_places(engine, adapter, choice), selection=selection)


def _places(engine: Engine, adapter: Adapter, choice: Choice) -> Sequence[Place]:
    """Where to look. The outbox knows a topic by its own name, and the broker by those of its groups' queues."""
    declared = load_jobs(choice.application) if choice.application else None
    known = list(declared.carriers() if declared else carriers_known(engine, adapter, named=[name.removesuffix(".dlq") for name in choice.queues]))
    if not (declared or choice.queues or choice.names or choice.source == "outbox"):
        tell_what_is_unlisted(adapter, known)
        tell_what_is_gone(sent_and_gone(engine, known))
    queues = declared.queues.values() if declared else ()
    named = [carrier for name in choice.queues for carrier in carriers_of(name, known, queues)]
    wanted = list(dict.fromkeys(named if choice.queues else known))
    looked_in = [] if choice.source == "outbox" else wanted
    found = places(engine, adapter, looked_in, parked_for=dict.fromkeys([*choice.queues, *named]), names=choice.names)
    return [place for place in found if choice.source in {None, place.source}]


@command.command(
    "list",
    epilog="""\b
Examples:
  postroom dead list
  postroom dead list --queue mails --json             a queue by its declared name, one of its parts, or its dead-letter queue
  postroom dead list --source outbox                  what the broker refused
  postroom dead list --by-error                       what goes wrong, and how often
""",
)
@_choosing
@click.option("--by-error", is_flag=True, help="Count them by their error, numbers and ids in it aside.")
@as_json
def list_(settings: Settings, choice: Choice, *, by_error: bool, json: bool) -> None:
    """List dead letters, oldest first; or count them --by-error."""
    with _open(settings, choice) as chosen:
        found = (letter for _, letter in chosen.letters())
        if by_error:
            _print(grouped(found), group_json, GROUP_COLUMNS, group_row, json=json)
        else:
            _print(found, partial(letter_json, whole=False), LETTER_COLUMNS, letter_row, json=json)


@command.command(
    epilog="""\b
Examples:
  postroom dead show order-4711
  postroom dead show --type send-receipt --limit 1 --json

Exit code 1 when what is named is not there.
"""
)
@_choosing
@as_json
def show(settings: Settings, choice: Choice, *, json: bool) -> int | None:
    """Show all about dead letters, payload and headers included."""
    choice.require()
    with _open(settings, choice) as chosen:
        found = [letter for _, letter in chosen.letters()]
    for letter in found:
        if json:
            echo_json(letter_json(letter))
        else:
            click.echo(letter_text(letter))
    return None if found else _nothing(choice)


@command.command(
    epilog="""\b
Examples:
  postroom dead replay order-4711
  postroom dead replay --error "connection refused"
  postroom dead replay --all --no-canary

What is replayed is fixed at the start: a job that dies again meanwhile is not replayed again. Of several, one goes first and is watched
until it is done; so a worker must be running. If it fails again, the others stay where they are, and the exit code is 1.
"""
)
@_choosing
@click.option("--all", "everything", is_flag=True, help="All dead letters of all queues.")
@click.option("--canary/--no-canary", default=True, help="Of several, whether one goes first and is watched.  [default: canary]")
@click.option("--canary-timeout", type=duration, default="30s", show_default=True, metavar="DURATION", help="How long the first one is watched.")
@as_json
def replay(settings: Settings, choice: Choice, *, everything: bool, canary: bool, canary_timeout: float, json: bool) -> int | None:
    """Send dead letters on their way again.

    Each has all its attempts before it.
    """
    choice.require(everything=everything)
    with _open(settings, choice) as chosen:
        meant = mark(chosen.engine, chosen.meant())
        if not meant:
            return _nothing(choice)
        ledger = Ledger(chosen.engine, worker="postroom dead replay", lease=30.0, native_delay=chosen.adapter.capabilities.native_delay)
        try:
            with progress("replay", len(meant)) as more:
                fates = Replay(chosen.engine, ledger).run(meant, progress=more, canary=canary_timeout if canary else None)
        except Unproven as answer:
            return _unproven(answer, len(meant) - 1)
    return _told(fates, json=json)


@command.command(
    epilog="""\b
Examples:
  postroom dead discard order-4711 --reason "a test order"
  postroom dead discard --error "no such customer" --reason "they have left" --json > discarded.jsonl

Exit code 1 when what is named is not there; --all of nothing is no failure. The key of a job that is discarded is free again: the next job
under it runs, whatever its payload.
"""
)
@_choosing
@click.option("--all", "everything", is_flag=True, help="All dead letters of all queues.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; `postroom status` shows it from then on.")
@as_json
def discard(settings: Settings, choice: Choice, *, everything: bool, reason: str, json: bool) -> int | None:
    """Remove dead letters for good. With --json each is printed whole: keep that, and nothing is lost."""
    choice.require(everything=everything)
    count = lost = 0
    with _open(settings, choice) as chosen, progress("discard") as more:
        meant = as_seen(chosen.engine, chosen.meant())
        for letter in discarded(chosen.engine, meant, reason):
            count += 1
            lost += letter.source == LostPlace.source
            more(1)
            if json:
                echo_json(letter_json(letter))
    if not json:
        click.echo(f"discarded {count}" + (f", {lost} of them in the ledger alone: their letters were gone; their keys are free" if lost else ""))
    if gone := len(meant) - count:
        click.echo(f"postroom: {Fate.GONE.value} {gone}: {GONE}", err=True)
        return None if count else NO if choice.names else None
    return None if count else _nothing(choice)


def _print(rows: Iterable[Row], as_object: Callable[[Row], Json], columns: Sequence[str], cells: Callable[[Row], Cells], *, json: bool) -> None:
    if json:
        for row in rows:
            echo_json(as_object(row))
    elif there := list(map(cells, rows)):
        table(columns, there)
    else:
        click.echo(f"postroom: {NONE}", err=True)


def _nothing(choice: Choice) -> int | None:
    """Nothing was found: that is a no only to who named something."""
    hint = "" if choice.application else " in the queues that are known; --app MODULE:JOBS names an application's"
    named = f"there is no dead letter {' or '.join(choice.names)} (any more){hint}"
    click.echo(f"postroom: {named if choice.names else NONE}", err=True)
    return NO if choice.names else None


def _told(fates: Counter[Fate], *, json: bool) -> int | None:
    if json:
        echo_json({fate.name.lower(): fates[fate] for fate in Fate})
    else:
        click.echo(", ".join(f"{fate.value} {fates[fate]}" for fate in Fate if fates[fate] or fate is Fate.REPLAYED))
    if fates[Fate.LOST]:
        click.echo(f"postroom: {LOST}", err=True)
    if fates[Fate.CONFLICT]:
        click.echo(f"postroom: {CONFLICT}", err=True)
    return NO if fates[Fate.CONFLICT] or fates[Fate.LOST] else None


def _unproven(answer: Unproven, others: int) -> int:
    name = answer.marked.key or answer.marked.id
    click.echo(f"postroom: {name} went first, and {answer}; left where they are: {others} more", err=True)
    click.echo(
        f"Next: `postroom status {name}` tells where it is. Is a worker running? Is the cause mended? Then run this again: what was replayed is not\n"
        "replayed twice. --canary-timeout 5m waits longer; --no-canary does not wait.",
        err=True,
    )
    return NO

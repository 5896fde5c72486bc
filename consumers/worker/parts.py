"""The parts of a worker process, and how they hang together."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.consumers.ledger import Ledger

from .alone import Alone
from .attempts import Attempts
from .buffer import Buffer
from .committer import Committer
from .held import Held
from .lanes import Crew, Desk
from .pace import Pace
from .pipeline import Pipeline
from .receiver import Receiver
from .renewer import Renewer
from .settler import Settler
from .upkeep import Upkeep
from .watch import Watch
from .work import Running

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from postroom.adapters.seam import Adapter, Consumer
    from postroom.consumers.jobs import Jobs

    from .marks import Marks
    from .settings import WorkerSettings

__all__ = ["Parts", "Plan", "build"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a worker is to do, and with what."""

    jobs: Jobs
    engine: Engine
    adapter: Adapter
    settings: WorkerSettings
    name: str
    marks: Marks
    beat: float
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """receiver -> buffer -> crew (lanes) -> committer -> settler, with watch, renewer and upkeep beside them."""

    consumer: Consumer
    receiver: Receiver
    buffer: Buffer
    crew: Crew
    desk: Desk
    committer: Committer
    settler: Settler
    watch: Watch
    renewer: Renewer
    upkeep: Upkeep


def build(plan: Plan) -> Parts:
    """Subscribe, and make all parts; none of them runs yet. Raises ConfigurationError or Unavailable."""
    settings, native_delay = plan.settings, plan.adapter.capabilities.native_delay
    carriers = plan.jobs.carriers(settings.queues)
    consumer = plan.adapter.consume(carriers, group=plan.jobs.group, prefetch=settings.prefetch, name=plan.name)
    held, pace = Held(), Pace(budget=settings.round_budget, most=settings.look_ahead)
    buffer, settler = Buffer(pace), Settler(consumer, held, native_delay=native_delay, clock=plan.clock)
    pipeline = Pipeline(plan.jobs, buffer, settler, native_delay=native_delay)
    ledger = Ledger(plan.engine, worker=plan.name, lease=settings.lease, native_delay=native_delay)
    desk = _desk(plan, buffer, pace, Committer(ledger, pipeline), pipeline, ledger)
    crew = Crew(settings.concurrency, desk)
    return Parts(
        consumer=consumer,
        receiver=_receiver(plan, consumer, desk, held, well=lambda: not (settler.failing or crew.stuck.is_set())),
        buffer=buffer,
        crew=crew,
        desk=desk,
        committer=desk.committer,
        settler=settler,
        watch=Watch(desk, crew, random.Random()),  # noqa: S311 - to spread retries
        renewer=Renewer(ledger, consumer, held, desk.running, pipeline, beat=plan.beat, lease=settings.lease),
        upkeep=Upkeep(ledger, retention=settings.retention),
    )


def _desk(plan: Plan, buffer: Buffer, pace: Pace, committer: Committer, pipeline: Pipeline, ledger: Ledger) -> Desk:
    broken = threading.Event()
    return Desk(
        buffer=buffer,
        pace=pace,
        committer=committer,
        pipeline=pipeline,
        attempts=Attempts(plan.jobs, plan.engine, ledger, concurrency=plan.settings.concurrency, broken=broken.set, clock=plan.clock),
        running=Running(),
        alone=Alone(plan.clock),
        marks=plan.marks,
        halted=threading.Event(),
        broken=broken,
        clock=plan.clock,
    )


def _receiver(plan: Plan, consumer: Consumer, desk: Desk, held: Held, *, well: Callable[[], bool]) -> Receiver:
    return Receiver(
        consumer,
        desk.buffer,
        held,
        desk.pace,
        desk.pipeline,
        plan.marks,
        lanes=plan.settings.concurrency,
        most=plan.settings.prefetch,
        paused=lambda: desk.alone.lasting,
        well=well,
        clock=plan.clock,
    )

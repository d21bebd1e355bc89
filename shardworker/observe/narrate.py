"""The story of a worker in log lines: INFO a handful for each slot, DEBUG each batch, ERROR what needs a person.

Messages are constant text and everything else is a field. No row content: ids, and the texts of errors.
"""

from __future__ import annotations

from shardworker.clock import Clock, SystemClock
from shardworker.events import (
    BatchDone,
    Draining,
    Emit,
    Event,
    HoleJumped,
    Recovered,
    Retrying,
    RowFailed,
    SlotClaimed,
    SlotFinished,
    SlotLost,
    SlotParked,
    SlotReleased,
    Waiting,
)
from shardworker.observe.logs import logger

WAITING_EVERY_S = 10.0


def narrator(job: str, run: str, *, clock: Clock | None = None) -> Emit:
    """A listener that logs what the workers of one run report; threads may share it."""
    log = logger.bind(job=job, run=run)
    now = (clock or SystemClock()).now
    silent_until = now()

    def narrate(event: Event) -> None:
        nonlocal silent_until
        match event:
            case SlotClaimed(last_id=None):
                log.bind(slot=event.slot, first=event.first, last=event.last, attempt=event.attempt).info("claimed")
            case SlotClaimed():
                log.bind(
                    slot=event.slot, first=event.first, last=event.last, last_id=event.last_id, attempt=event.attempt
                ).info("claimed; resumed after last_id")
            case BatchDone():
                log.bind(
                    slot=event.slot, last_id=event.last_id, rows=event.rows, seconds=round(event.seconds, 3)
                ).debug("batch done")
            case SlotFinished():
                log.bind(slot=event.slot, rows=event.rows, seconds=round(event.seconds, 3)).info("finished")
            case SlotReleased():
                log.bind(slot=event.slot, last_id=event.last_id).info("released, to be resumed")
            case SlotParked():
                log.bind(slot=event.slot, last_id=event.last_id, reason=event.reason).warning("parked")
            case SlotLost():
                log.bind(slot=event.slot, reason=event.reason).warning("lost")
            case HoleJumped():
                log.bind(slots=event.slots, next_slot=event.next_slot).debug("jumped over empty slots")
            case RowFailed():
                log.bind(row_id=event.row_id, error=event.error, attempts=event.attempts).error("row failed")
            case Retrying():
                log.bind(
                    target=event.target,
                    code=event.code,
                    error=event.error,
                    attempt=event.attempt,
                    wait_s=round(event.wait_s, 3),
                ).warning("failed; will be tried again")
            case Recovered():
                log.bind(target=event.target, after_s=round(event.after_s, 3)).info("works again")
            case Waiting():
                if now() >= silent_until:
                    silent_until = now() + WAITING_EVERY_S
                    log.bind(open_slots=event.open_slots, wait_s=round(event.wait_s, 3)).info(
                        "waiting; other workers hold what is left"
                    )
            case Draining():
                log.bind(signal=event.signal).info("draining")

    return narrate

"""Follows the jobs of a submission, from the machine on which it was made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from walle.launcher.allocation import Grant
from walle.launcher.composing import Job, StopRule
from walle.launcher.jobs.verdict import Verdict
from walle.launcher.planning import Plan
from walle.launcher.records import LOG, last_lines
from walle.launcher.screen import Screen
from walle.launcher.workers.claims import Claim, Claims, Stops
from walle.launcher.workers.submission import Submission
from walle.system.format import count_text
from walle.system.run_files import read_status

POLL_S = 1.0
ASK_S = 30.0  # between two questions to the scheduler
LOST = Verdict("interrupted", "its worker vanished, and no other worker was left")


class Follower:
    """Shows the jobs of a submission as they start and end, and has some of them stopped."""

    def __init__(
        self,
        plan: Plan,
        submission: Submission,
        screen: Screen,
        ask: Callable[[Sequence[str]], Mapping[str, object] | None],
        stop_rule: StopRule | None = None,
        stop_rule_s: float = POLL_S,
    ) -> None:
        """Has seen nothing yet.

        Args:
            plan: the jobs.
            submission: the workers.
            screen: shows what happens.
            ask: asks the scheduler which workers of `Submission.arrays` it still has; None if it
                does not answer.
            stop_rule: decides which jobs need not run to their ends.
            stop_rule_s: seconds between two calls of `stop_rule` for every job.
        """
        self._plan, self._submission, self._screen = plan, submission, screen
        self._ask = ask
        self._claims, self._stops = Claims(submission.directory), Stops(submission.directory)
        self._stop_rule, self._stop_rule_s, self._stop_rule_at = stop_rule, stop_rule_s, 0.0
        self._stopped: set[int] = set()  # indices of jobs that workers were asked to stop
        self._shown: dict[int, Claim] = {}  # the claim shown last, by the job's index
        self._verdicts: dict[int, Verdict] = {}

    def follow(
        self, ending: Sequence[int], meanwhile: Callable[[], None] = lambda: None
    ) -> dict[int, Verdict]:
        """Waits until all jobs have ended, no worker is left, or a signal arrives.

        Args:
            ending: signals; grows.
            meanwhile: called about once a second.

        Returns:
            how each job ended, by index; a job that never started is left out.
        """
        ask_at, gone = time.monotonic() + ASK_S, False
        while not ending:
            self.look()
            self._apply_stop_rule()
            meanwhile()
            if gone or len(self._verdicts) == len(self._plan.order):
                break
            if time.monotonic() > ask_at:
                gone = self._ask(self._submission.arrays) == {}
                ask_at = time.monotonic() + ASK_S
            else:
                time.sleep(POLL_S)
        if gone:  # jobs that were running have ended with their workers
            lost = {i for i, claim in self._shown.items() if not claim.is_over}
            self._verdicts |= dict.fromkeys(lost, LOST)
            if left := len(self._plan.order) - len(self._verdicts) + len(lost):
                self._screen.warn(f"no worker is left for {count_text(left, 'job')}")
        return self._verdicts

    def ended_early(self) -> dict[int, Verdict]:
        """How each job ended after all workers were asked to end."""
        self.look()
        for index, claim in self._shown.items():
            if not claim.is_over:
                verdict = recorded_verdict(self._plan.jobs[index])
                self._verdicts[index] = LOST if verdict.state == "running" else verdict
        return self._verdicts

    def look(self) -> None:
        """Shows what is new."""
        newest = self._claims.newest()
        for index in self._plan.order:
            claim = newest.get(self._plan.jobs[index].num)
            if claim is not None and claim != self._shown.get(index):
                self._show(index, claim)
        running = [
            (job, _grant(index, job))
            for index, claim in self._shown.items()
            if claim.state is None and (job := self._plan.jobs[index])
        ]
        waiting = len(self._plan.order) - len(self._verdicts) - len(running)
        self._screen.update(running, waiting)

    def _apply_stop_rule(self) -> None:
        """Has the workers stop the jobs that need not run to their ends, or not start them."""
        if self._stop_rule is None or time.monotonic() < self._stop_rule_at:
            return
        self._stop_rule_at = time.monotonic() + self._stop_rule_s
        over = self._stopped | self._verdicts.keys()
        stops: list[tuple[bool, int, str]] = []
        for index in [i for i in self._plan.order if i not in over]:
            claim = self._shown.get(index)
            runs = claim is not None and claim.state is None
            if reason := self._stop_rule(self._plan.jobs[index], starts=runs):
                stops.append((runs, index, reason))
        for _, index, reason in sorted(stops):  # first those that wait for the cores of the others
            self._stops.ask(self._plan.jobs[index].num, reason)
            self._stopped.add(index)

    def _show(self, index: int, claim: Claim) -> None:
        job, before = self._plan.jobs[index], self._shown.get(index)
        if before is None or before.turn < claim.turn:
            if before is not None and before.state is None:
                self._screen.warn(f"#{job.num} changed hands: its worker was stopped or vanished")
            grant = _grant(index, job)
            if not grant.cores:  # claimed a moment ago, without a status.json, or never to start
                if claim.is_over and recorded_verdict(job).state == "pruned":
                    self._shown[index], self._verdicts[index] = claim, recorded_verdict(job)
                return
            self._screen.started(job, grant, "resumes" if claim.turn else "starts")
        self._shown[index] = claim
        if claim.is_over:
            verdict = recorded_verdict(job)
            self._verdicts[index] = verdict
            wanted = verdict.state in ("completed", "pruned")
            self._screen.ended(job, verdict, [] if wanted else last_lines(job.directory / LOG))


def recorded_verdict(job: Job) -> Verdict:
    """How a job ended, as its worker wrote it into status.json."""
    status = read_status(job.directory)
    return Verdict(
        status.get("state", "failed"),
        status.get("error"),
        status.get("exit_code"),
        status.get("signal"),
        status.get("return_value"),
    )


def _grant(index: int, job: Job) -> Grant:
    status = read_status(job.directory)
    over = bool(status.get("oversubscribed"))
    return Grant(index, tuple(status.get("cores") or ()), tuple(status.get("gpus") or ()), over)

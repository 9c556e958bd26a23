"""What a user hears while a long run goes on: how far it is, and the losses; no torch."""

from collections.abc import Callable, Mapping

__all__ = ["AfterStep", "step_teller"]

_EVERY_S = 30.0

AfterStep = Callable[[int, Mapping[str, float]], None]
"""Called with how many steps are done, of the whole training, and the losses of the last."""


def step_teller(
    tell: Callable[[str], None], steps: range, clock_s: Callable[[], float]
) -> AfterStep:
    """Give what tells how far the steps are, half a minute apart; short runs tell nothing."""
    begun_s = told_s = clock_s()

    def after(done: int, losses: Mapping[str, float]) -> None:
        nonlocal told_s
        now_s = clock_s()
        if now_s - told_s < _EVERY_S or done >= steps.stop:
            return
        told_s = now_s
        each_s = (now_s - begun_s) / (done - steps.start)
        shown = ", ".join(f"{task} {loss:.4f}" for task, loss in losses.items())
        ending = f"; losses: {shown}" if shown else ""
        tell(f"step {done} of {steps.stop}, {each_s:.3g} s each{ending}")

    return after

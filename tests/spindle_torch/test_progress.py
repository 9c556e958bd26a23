"""A long run says how far it is, a short one nothing."""

from spindle_torch.progress import step_teller


def told(each_s: float, steps: range, losses: dict[str, float]) -> list[str]:
    said: list[str] = []
    now_s = [100.0]
    after = step_teller(said.append, steps, lambda: now_s[0])
    for step in steps:
        now_s[0] += each_s
        after(step + 1, losses)
    return said


def test_a_long_run_tells_its_step_and_losses_half_a_minute_apart() -> None:
    said = told(10.0, range(100, 110), {"text": 1.5, "vision": 2.0})
    losses = "losses: text 1.5000, vision 2.0000"
    assert said == [f"step {step} of 110, 10 s each; {losses}" for step in (103, 106, 109)]


def test_an_emulated_run_has_no_losses_to_tell() -> None:
    assert told(31.0, range(2), {}) == ["step 1 of 2, 31 s each"]


def test_a_short_run_tells_nothing() -> None:
    assert told(1.0, range(20), {"text": 1.5}) == []

"""Tests the Transformer's and GNMT's learning rates against the published formulas, step by step."""

import numpy as np
import pytest

from common.config.schema import Schedule
from common.errors import UserError
from common.optim import schedules

STEPS = np.arange(0, 6000, 7)


@pytest.mark.parametrize(("scale", "warm"), [(2.0, 1000), (1.3, 550), (1.875, 1107), (3.30922, 664)])
def test_noam_is_the_published_formula(scale, warm):
    rate = schedules.learning_rate(Schedule(kind="noam", warmup_steps=warm, width=1024), scale, 1107.0, 4428)
    s = STEPS.astype(float)
    expected = scale * np.minimum(1, s / warm) * np.maximum(s, warm) ** -0.5 * 1024**-0.5
    np.testing.assert_allclose(rate(STEPS), expected, rtol=1e-6)


@pytest.mark.parametrize(("scale", "warm", "peak"), [(2.0, 1000, 1.98e-3), (1.3, 550, 1.73e-3)])
def test_noam_peaks_where_the_submissions_did(scale, warm, peak):
    rate = schedules.learning_rate(Schedule(kind="noam", warmup_steps=warm), scale, 1.0, 5000)
    assert float(rate(warm)) == pytest.approx(peak, rel=5e-3)
    assert float(rate(warm)) == max(rate(STEPS).numpy().max(), float(rate(warm)))


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize(("warm", "start", "interval"), [(150, 4000, 300), (200, 1924, 241)])
def test_gnmt_is_google_s_or_the_reference_s(warm, start, interval, at_start):
    schedule = Schedule(
        kind="gnmt",
        warmup_steps=warm,
        warmup_curve="exponential",
        factor=0.5,
        decay_start_step=start,
        decay_interval=interval,
        decay_at_start=at_start,
    )
    rate = schedules.learning_rate(schedule, 0.0045, 420.0, 4200)
    for s in [*STEPS, start - 1, start, start + interval - 1, start + interval, start + 4 * interval]:
        if s < warm:
            expected = 0.0045 * 0.01 ** ((warm - s) / warm)
        elif s < start:
            expected = 0.0045
        else:
            halvings = (s - start) // interval + (1 if at_start else 0)
            expected = 0.0045 * 0.5 ** min(halvings, 4)
        assert float(rate(int(s))) == pytest.approx(expected, rel=1e-6), s


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule(kind="noam", warmup_epochs=0.0), "without a warmup"),
        (Schedule(kind="gnmt"), "config.schedule.decay_interval=0"),
        (Schedule(kind="constant", warmup_curve="cubic"), "config.schedule.warmup_curve='cubic': unknown"),
    ],
)
def test_bad_schedules_are_one_line(schedule, message):
    with pytest.raises(UserError, match=message):
        schedules.learning_rate(schedule, 1.0, 100.0, 1000)

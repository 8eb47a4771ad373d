"""How hypothesis runs the grammar properties: the same examples every time, and no clock."""

from hypothesis import HealthCheck, Phase, settings

PROPERTY = settings(
    derandomize=True,
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

"""`TelemetryOptions`: the table ``[telemetry]`` of a scenario, and the flags of a bench."""

from pydantic import Field

from testbed.core.tables import Table

__all__ = ["TelemetryOptions"]


class TelemetryOptions(Table):
    """``[telemetry]``: whether and how often the CPUs are sampled."""

    enabled: bool = Field(
        default=False, description="sample where CPU time goes, and count what the kernel does"
    )
    rate: int = Field(default=997, ge=1, le=10_000, description="samples per second of each CPU")

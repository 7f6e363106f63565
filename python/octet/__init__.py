"""Trains language models in FP8 with the program octet, which runs as a child process.

Whole runs: plan, train, export, generate, read_metrics. Own training loop: Session.
Log lines go to logging.getLogger("octet"), the console output of a run to "octet.console" at level INFO.
"""

from ._errors import ConfigError, NotFiniteError, OctetError, SaveError, Stopped
from ._metrics import Metrics, read_metrics
from ._runs import Plan, Result, export, generate, plan, train
from ._session import Evaluation, Session, StepResult

__all__ = [
    "ConfigError",
    "Evaluation",
    "Metrics",
    "NotFiniteError",
    "OctetError",
    "Plan",
    "Result",
    "SaveError",
    "Session",
    "StepResult",
    "Stopped",
    "export",
    "generate",
    "plan",
    "read_metrics",
    "train",
]

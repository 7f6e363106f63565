from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Union


class OctetError(RuntimeError):
    """The program failed. The message has its errors, or the last lines of its log."""


class ConfigError(OctetError, ValueError):
    """Something is wrong with the configuration, the model, the data or an argument: nothing was started."""

    def __init__(self, errors: Union[str, Sequence[str]]) -> None:
        self.errors = errors.splitlines() if isinstance(errors, str) else list(errors)
        super().__init__("\n".join(self.errors))


class NotFiniteError(OctetError):
    """Several steps in a row had no finite gradient. The last good checkpoint is kept."""


class SaveError(OctetError):
    """Checkpoints could not be saved."""


class Stopped(OctetError):
    """A signal stopped the run. If it has saved, train(..., resume="latest") continues it."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU, signal.SIGHUP)
STOPPED = (75, *(128 + number for number in STOP_SIGNALS))
_ERRORS: dict[int, type[OctetError]] = {3: NotFiniteError, 4: SaveError, **dict.fromkeys(STOPPED, Stopped)}


def error_of(code: int, log: Sequence[str]) -> OctetError:
    """What to raise for a child that ended with `code` (negative: killed by a signal) after these lines of stderr."""
    errors = [line[len("error: ") :] for line in log if line.startswith("error: ")]
    if code == 2:
        return ConfigError(errors or log)
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        end = f"octet was killed by {known.get(-code, f'signal {-code}')}"
    else:
        end = f"octet ended with exit code {code}"
    return _ERRORS.get(code, OctetError)("\n".join([end, *(errors if errors and code > 0 else log)]))

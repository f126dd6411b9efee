"""The schedule that runs the six steps: synchronous or asynchronous, on a real or a virtual clock."""

from .buffer import GroupBuffer, Ticket
from .clock import RealClock, VirtualClock, VirtualDeadlock, VirtualLoop, run_virtual
from .resume import Resumption, prepare
from .folder import make_folder
from .run import EXIT_CODES, Outcome, conduct, execute, go_on

__all__ = [
    "EXIT_CODES", "GroupBuffer", "Outcome", "RealClock", "Resumption", "Ticket", "VirtualClock", "VirtualDeadlock",
    "VirtualLoop", "conduct", "execute", "go_on", "make_folder", "prepare", "run_virtual",
]

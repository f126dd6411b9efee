"""The schedule that runs the six steps: synchronous or asynchronous, on a real or a virtual clock."""

from .attempt import Outcome
from .buffer import GroupBuffer, Ticket
from .clock import RealClock, VirtualClock, VirtualDeadlock, VirtualLoop, run_virtual
from .evaluating import conduct_evaluation
from .evaluation import Evaluation, Verdict, alone, prepare_evaluation
from .folder import make_folder
from .resume import Resumption, prepare
from .run import EXIT_CODES, evaluate, execute, go_on
from .training import conduct
from .validating import check_deferred, due_steps

__all__ = [
    "EXIT_CODES", "Evaluation", "GroupBuffer", "Outcome", "RealClock", "Resumption", "Ticket", "Verdict",
    "VirtualClock", "VirtualDeadlock", "VirtualLoop", "alone", "check_deferred", "conduct", "conduct_evaluation",
    "due_steps", "evaluate", "execute", "go_on", "make_folder", "prepare", "prepare_evaluation", "run_virtual",
]

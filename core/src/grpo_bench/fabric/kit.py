"""What fabrics elsewhere are made of: the parts of the local one that do not depend on where a process runs.

A fabric derives :class:`SeatedFabric` and makes its own seats. On each machine a :class:`Station` holds what its worker
processes have in common, and a :class:`Seat` one such process; requests and answers cross as bytes.
"""

from ._answers import answer_to, pack_request, read_answer, refusal
from ._calls import worker_name
from ._host import HostClock
from ._names import within_start
from ._seat import Seat
from ._seated import GroupSeat, SeatedFabric, SeatedGroup
from ._station import LOOPBACK, Station, variables

__all__ = [
    "GroupSeat", "HostClock", "LOOPBACK", "Seat", "SeatedFabric", "SeatedGroup", "Station", "answer_to",
    "pack_request", "read_answer", "refusal", "variables", "within_start", "worker_name",
]

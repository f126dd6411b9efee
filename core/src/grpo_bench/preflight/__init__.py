"""Looking at a machine before a run: what is asked for, whether it is there, and whether it is what it should be."""

from .digests import Digests as Digests, file_digests as file_digests
from .digests_cache import DigestCache as DigestCache, default_file as default_file
from .manifests import findings as manifest_findings
from .progress import Progress as Progress
from .run import Judged as Judged, preflight as preflight

__all__ = [
    "DigestCache", "Digests", "Judged", "Progress", "default_file", "file_digests", "manifest_findings", "preflight",
]

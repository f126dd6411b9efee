"""The tensors of a folder of weights, byte for byte as its safetensors files hold them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.contract import PluginError, TensorSpec

from .heads import Head, head_of

FILES = "*.safetensors"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8"}


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    start: int
    size: int


class StoredTensors:
    """All tensors of a folder, or of those of its ``files``; nothing but heads is read before ``read`` asks for it.
    PluginError where a file is none in safetensors form, or holds numbers of a kind that no transfer carries."""

    def __init__(self, folder: Path, files: str = FILES) -> None:
        self._places: dict[TensorSpec, _Place] = {}
        for file, head in _heads(folder, files):
            with _named(file):
                self._places.update(_tensors(file, head))

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(self._places)

    def read(self, spec: TensorSpec) -> bytes:
        place = self._places[spec]
        with place.file.open("rb") as handle:
            handle.seek(place.start)
            return handle.read(place.size)


def tensor_names(folder: Path) -> frozenset[str]:
    """The names of all tensors of a folder, whatever numbers they hold; PluginError where a file is none in safetensors
    form."""
    return frozenset(name for _, head in _heads(folder, FILES) for name in head.tensors)


def _heads(folder: Path, files: str) -> Iterator[tuple[Path, Head]]:
    for file in sorted(folder.glob(files)):
        with _named(file):
            head = head_of(file)
        yield file, head


def _tensors(file: Path, head: Head) -> Iterator[tuple[TensorSpec, _Place]]:
    for name, entry in sorted(head.tensors.items()):
        spec = TensorSpec(name, entry.shape, _DTYPES[entry.dtype])
        yield spec, _Place(file, head.data + entry.start, entry.stop - entry.start)


@contextmanager
def _named(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise PluginError(f"{file} holds no tensors that can be sent: {type(error).__name__}: {error}",
                          hint=f"a file in safetensors form, with dtypes {', '.join(_DTYPES)}") from error

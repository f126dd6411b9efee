"""The check for GPUs, on a CPU: what it finds, what it needs, what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks import _gpu_errors, _gpu_speed, gpu_check

ROOT = Path(__file__).parents[1]
NOT_NEEDED = ("aiohttp", "jinja2", "msgpack", "packaging", "rich", "structlog", "tokenizers")


def test_the_cpu_half_needs_few_packages_and_writes_its_figures_with_the_machine(tmp_path):
    script = (f"import sys; sys.modules.update(dict.fromkeys({NOT_NEEDED!r})); from benchmarks.gpu_check import main; "
              f"sys.exit(main(['--device', 'cpu', '--out', {str(tmp_path)!r}]))")
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=ROOT, capture_output=True, text=True,
                          check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines, last = done.stdout.splitlines()
    assert "CPU half only" in first and last == f"{len(lines)} findings, 0 beyond their bounds; see {tmp_path}"
    (written,) = tmp_path.glob("gpu_check-*.json")
    content = json.loads(written.read_text())
    assert content["machine"]["name"] in first and len(content["findings"]) == len(lines)
    errors = [one for one in content["findings"] if one["kind"] == "error"]
    assert {"float32", "bfloat16", "bfloat16, then float32"} == {one["precision"] for one in errors}
    assert any("248,320" in one["size"] for one in errors)
    assert all(one["value_max"] > 0 and one["gradient_norm"] > 0 for one in errors)
    table = written.with_suffix(".md").read_text().splitlines()
    assert table[0] == f"# GPU check: {content['machine']['name']}"
    assert sum(line.startswith("|") for line in table) == len(lines) + 4


def test_a_wrong_computation_is_beyond_its_bound(monkeypatch, capsys, tmp_path):
    right = _gpu_errors.token_log_probabilities

    def wrong(logits, where, ids, temperature):
        return right(logits, where, ids, temperature if logits.dtype == torch.float64 else 1.01 * temperature)

    monkeypatch.setattr(_gpu_errors, "token_log_probabilities", wrong)
    monkeypatch.setattr(_gpu_errors, "_VOCABULARIES", (1000,))
    monkeypatch.setattr(gpu_check, "findings", lambda device, _: _gpu_errors.log_probability_errors(device))
    assert gpu_check.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    assert "log-probability of logits                 4 x 1,000" in capsys.readouterr().out
    (table,) = tmp_path.glob("*.md")
    assert "**beyond 0.0001, 0.01**" in table.read_text()


def test_an_error_that_is_no_number_is_never_fine():
    nan, zero = torch.tensor([torch.nan]), torch.zeros(1, dtype=torch.float64)
    assert not _gpu_errors.compared("", "", "", (nan, zero), (zero, zero + 1), (1.0, 1.0)).fine
    assert not _gpu_errors.compared("", "", "", (zero, nan), (zero, zero + 1), (1.0, 1.0)).fine


def test_what_does_not_fit_into_memory_is_said_and_the_rest_goes_on(monkeypatch, tmp_path):
    update = _gpu_speed._update

    def short(variant, device):
        if len(variant.batch.ids) > 4 * 64:
            raise torch.OutOfMemoryError
        return update(variant, device)

    monkeypatch.setattr(_gpu_speed, "_update", short)
    monkeypatch.setattr(_gpu_speed, "_ROWS", {"cpu": (4,)})
    found = {speed.what: speed for speed in _gpu_speed.speeds("cpu", tmp_path)}
    assert "out of memory" in str(found["padded"]) and found["packed"].seconds is not None
    assert found["packed"].times is None


def test_padding_keeps_rows_and_what_trains():
    batch = _gpu_speed.make_batch(4, 32, 50)
    padded = _gpu_speed.padded(batch)
    longest = max(batch.offsets[1:] - batch.offsets[:-1])
    assert padded.offsets.tolist() == [longest * row for row in range(5)]
    assert padded.ids[padded.token_mask].tolist() == batch.ids[batch.token_mask].tolist()
    assert padded.n_tokens == batch.n_tokens == padded.token_mask.sum()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--device", "tpu"], "invalid choice"), (["--wheels", "nowhere"], "pip download"),
    (["--out", "file/inside"], "cannot be made"), (["--wheels", "broken"], "a.whl cannot be unpacked"),
])
def test_wrong_arguments_are_refused(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("broken").mkdir()
    Path("broken/a.whl").touch()
    with pytest.raises(SystemExit) as left:
        gpu_check.main(arguments)
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_what_this_python_lacks_comes_from_wheels_or_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpu_check, "_CARRIED", ("missing_here",))
    monkeypatch.setattr(gpu_check, "findings", lambda *_: iter(()))
    with pytest.raises(SystemExit) as left:
        gpu_check.main(["--device", "cpu"])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert "No module named 'missing_here'" in told and "--wheels" in told
    with zipfile.ZipFile(tmp_path / "missing_here-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("missing_here.py", "")
    path = list(sys.path)
    assert gpu_check.main(["--device", "cpu", "--wheels", str(tmp_path)]) == 0
    assert sys.path == path
    del sys.modules["missing_here"]

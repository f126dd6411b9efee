"""``docs/site.md``: its tables say what the models say, its example is a site file. Run as a script, this module prints
the tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_bench.registry import read_site_file
from grpo_bench.registry.described import described
from grpo_bench.registry.site import KEYS
from grpo_bench.registry.site_tables import Artifacts, Launch, Sources, System

PAGE = Path(__file__).parents[3] / "docs" / "site.md"
HEADING = "## All keys\n"


def tables() -> str:
    text = ""
    models = {"artifacts": Artifacts, "artifacts.sources": Sources, "system": System, "launch": Launch}
    for name, model in models.items():
        text += f"\n`[{name}]`\n\n| key | values | meaning |\n|---|---|---|\n"
        for item in described(model):
            if item.key != "sources":
                values = item.type.removesuffix(' or "off"').replace("|", "\\|")
                text += f"| `{item.key}` | {values} | {item.description} |\n"
    return text


def test_the_page_has_every_key_as_the_models_say_it() -> None:
    assert PAGE.read_text("utf-8").partition(HEADING)[2] == tables(), f"its end is what {Path(__file__).name} prints"
    assert all(f"| `{key.rpartition('.')[2]}` |" in tables() for key in KEYS)
    assert "|  |" not in tables()


def test_the_pages_example_is_a_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    example = PAGE.read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "site.toml").write_text(example)
    site = read_site_file(tmp_path / "site.toml")
    assert site is not None and site.artifacts.megatron_cache == "/scratch/me/megatron"
    assert site.snapshot is not None and site.snapshot.revision.startswith("8472618112")
    given = [key for key in KEYS if site.get(key) is not None]
    asked = ("artifacts.hf_checkpoint", "artifacts.megatron_cache", "artifacts.train_data", "artifacts.validation_data",
             "artifacts.sif_dir", "system.submitter", "system.status", "system.system_name",
             "system.accelerator_model_name", "system.framework", "system.framework_short_name",
             "system.host_storage_type", "system.host_storage_capacity", "system.host_networking",
             "system.accelerator_memory_configuration", "system.accelerator_interconnect")
    assert set(asked) <= set(given)


if __name__ == "__main__":
    print(tables(), end="")

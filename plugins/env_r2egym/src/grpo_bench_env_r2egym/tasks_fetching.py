"""Downloads source distributions as plain files; run as a program: ``tasks_fetching.py FOLDER NAME==VERSION ...``.

``pip download`` prepares what it downloads, which runs a source distribution's own code on this machine. So this asks
pip only where a file is, with the settings that pip has here (index, proxy, certificates), and saves it after checking
its hash. It runs as a program of its own because pip has no public interface for that and keeps global state.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def main(folder: Path, wanted: list[str]) -> None:
    from pip._internal.commands import create_command

    command = create_command("download")
    options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:", "--quiet", *wanted])
    with command.main_context():
        session = command.get_default_session(options)  # pyright: ignore[reportAttributeAccessIssue]
        finder = command._build_package_finder(options, session)  # pyright: ignore[reportAttributeAccessIssue]
        for name, version in (item.split("==") for item in wanted):
            links = [found.link for found in finder.find_all_candidates(name)
                     if str(found.version) == version and found.link.filename.endswith(".tar.gz")]
            if not links:
                raise SystemExit(f"{name} {version}: there is no .tar.gz source distribution")
            save(session, links[0], folder / f"{name}-{version}.tar.gz")


def save(session, link, path: Path) -> None:
    response = session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"})
    response.raise_for_status()
    kind = link.hash_name
    if kind and hashlib.new(kind, response.content).hexdigest() != link.hash:
        raise SystemExit(f"{link.filename}: the download is damaged ({kind} differs from the index's)")
    part = path.with_suffix(".part")
    part.write_bytes(response.content)
    part.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

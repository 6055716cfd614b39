"""The pictures of the dashboards: there, of every one, small enough for a README."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
from dashboards import files
from dashboards.pictures import render

PAGE = Path(render.__file__).parent


@pytest.mark.parametrize("name", files.BOARDS)
def test_every_dashboard_has_a_picture(name: str) -> None:
    picture = (render.PICTURES / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width == render.WIDTH
    assert height == render.height_of(files.BOARDS[name]), "drawn of another layout"
    assert len(picture) < 400_000


def test_no_picture_is_of_a_dashboard_that_is_gone() -> None:
    drawn = {picture.stem for picture in render.PICTURES.glob("*.png")}
    assert drawn == set(files.BOARDS)


def test_the_page_uses_packages_of_pinned_versions_and_none_under_agpl() -> None:
    packages = json.loads((PAGE / "package.json").read_text())["dependencies"]
    for version in packages.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), version
    imported = {
        package
        for source in (PAGE / "src").iterdir()
        for package in re.findall(r"from '(@?[^.'][^']*)'", source.read_text())
    }
    apache = {"@grafana/data", "@grafana/schema", "@grafana/ui"}
    others = {"react", "react-dom", "react-dom/client"}
    assert imported <= apache | others
    assert {name for name in packages if name.startswith("@grafana/")} == apache

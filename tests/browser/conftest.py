"""Chromium, a page that notes what it asks for, and a JupyterLab of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update",
             "--disable-sync"]  # fmt: skip


def missing(what: str) -> None:
    """Skip with a reason; where CI is set, fail: there everything must be present."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI must not skip the browser tests")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium, started once."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        missing("chromium (apt-get install chromium)")
    for module in ("playwright", "axe_playwright_python"):
        if find_spec(module) is None:
            missing(f"{module} (requirements-dev.txt)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


def is_outside(url: str) -> bool:
    """True for what would leave this machine."""
    return not url.startswith(("file:", "data:", "blob:", "about:", "http://127.0.0.1", "ws://127"))


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """A function that opens an address in a page of its own; at the end no page may have asked for
    anything outside, shown a dialog, or met an error."""
    contexts, troubles = [], []

    def open_page(address: str | Path, **options: Any) -> Any:
        viewport = {"width": 1200, "height": 900}
        context = browser.new_context(**{"viewport": viewport} | options)
        contexts.append(context)
        page = context.new_page()
        context.on(
            "request", lambda r: troubles.append(f"asks for {r.url}") if is_outside(r.url) else 0
        )
        page.on("dialog", lambda dialog: (troubles.append("a dialog"), dialog.dismiss()))
        page.on("pageerror", lambda error: troubles.append(f"error {error}"))
        page.goto(address.as_uri() if isinstance(address, Path) else address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@dataclass
class Lab:
    """A running JupyterLab: its address, its folder, its surroundings."""

    address: str
    folder: Path
    environment: dict[str, str]

    def url(self, notebook: str) -> str:
        return f"{self.address}/lab/tree/{notebook}?token=t&reset"


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab on a free port, with settings and data of its own."""
    root = tmp_path_factory.mktemp("lab")
    folder = root / "notebooks"
    folder.mkdir()
    names = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR",
             "JUPYTERLAB_WORKSPACES_DIR", "JUPYTERLAB_SETTINGS_DIR", "IPYTHONDIR"]  # fmt: skip
    environment = os.environ | {name: str(root / name.lower()) for name in names}
    config = root / "jupyter_config_dir" / "labconfig"
    config.mkdir(parents=True)
    news = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (config / "page_config.json").write_text(json.dumps(news))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        "--IdentityProvider.token=t", f"--ServerApp.root_dir={folder}",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    log = open(root / "lab.log", "w")
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(240):
            if server.poll() is not None:
                pytest.fail(f"JupyterLab ended: {(root / 'lab.log').read_text()[-2000:]}")
            try:
                urllib.request.urlopen(f"{address}/api/status?token=t", timeout=5)
                break
            except OSError:
                time.sleep(0.25)
        yield Lab(address, folder, environment)
    finally:
        server.terminate()
        server.wait(timeout=20)
        log.close()

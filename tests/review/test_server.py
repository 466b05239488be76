"""Serving a folder: what can go wrong before the page is there, and how the browser gets there."""

import os
import socket
import subprocess
import sys

import httpx
import pytest

from dross.errors import InvalidInput
from dross.review.server import serve
from tests.review.review_client import read_address, wait_for


def test_a_taken_port_says_what_to_do(fresh):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidInput, match="--port"):
            serve(fresh.folder, port=taken.getsockname()[1], open_browser=False)


def test_a_folder_that_is_no_project_says_so(tmp_path):
    with pytest.raises(InvalidInput, match="dross clean"):
        serve(tmp_path, open_browser=False)


@pytest.mark.skipif(os.name != "posix", reason="the browser of this test is a shell script")
def test_the_browser_is_opened_without_the_token_in_its_command_line(fresh, tmp_path):
    """The real command, and a browser that writes down what anybody could see in `ps`."""
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$@" > {seen}.new && mv {seen}.new {seen}\n')
    browser.chmod(0o755)
    command = [sys.executable, "-P", "-m", "dross", "review", str(fresh.folder)]
    environment = os.environ | {"BROWSER": f"{browser} %s"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as server:
        try:
            address = read_address(server)
            token = address.partition("token=")[2]
            given = wait_for(lambda: seen.exists() and seen.read_text().strip(), 60)
            assert given.startswith("http://127.0.0.1") and token not in given
            statuses = [httpx.get(given, trust_env=False).status_code for _ in range(2)]
            assert statuses == [200, 401]  # good for one visit
            assert httpx.get(address, trust_env=False).status_code == 200
        finally:
            server.terminate()
            server.wait(30)

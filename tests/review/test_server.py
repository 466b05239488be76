"""Serving a folder: what can go wrong before the page is there."""

import socket

import pytest

from dross.errors import BadInput, TapeDamaged
from dross.review.server import serve


def test_a_taken_port_says_what_to_do(fresh):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="--port"):
            serve(fresh.folder, port=taken.getsockname()[1], open_browser=False)


def test_a_folder_that_is_no_project_says_so(tmp_path):
    with pytest.raises(TapeDamaged, match="dross clean"):
        serve(tmp_path, open_browser=False)

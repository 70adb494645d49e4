import os
import sys
from pathlib import Path

import pytest

import txlayer


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs the package before the tests")
def test_the_tests_see_the_installed_package() -> None:
    assert Path(txlayer.__file__).is_relative_to(sys.prefix)

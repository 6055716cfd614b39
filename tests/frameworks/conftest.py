"""What is asserted for these tests elsewhere is explained as if it stood in them."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support.frameworks")

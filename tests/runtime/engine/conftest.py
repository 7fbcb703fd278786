"""Modules of this folder, for the tests of it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

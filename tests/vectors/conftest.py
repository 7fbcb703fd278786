"""The vectors are made by a script beside the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

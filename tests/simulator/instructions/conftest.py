"""The tests of single instructions share what fills registers and reads them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "pseudocode"))

"""The tests of single instructions share the reader of AMD's pseudocode."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path += [str(EXAMPLES / name) for name in ("parallel_trpo_2016", "wall_e_2018")]

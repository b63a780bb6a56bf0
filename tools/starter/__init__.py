"""What makes the starter model: its texts, its training, its evaluation."""

from pathlib import Path

MODEL_DIRECTORY = Path(__file__).parents[2] / "kvchat" / "starter" / "model"

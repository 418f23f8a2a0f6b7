"""Services that receive no numbers of a run without values: the one place that lists them."""

from __future__ import annotations

from collections.abc import MutableMapping

__all__ = ["SERVICES", "set_environment"]

SERVICES = (
    "Hugging Face Hub: uploads and changes of repositories are not sent",
    "Weights & Biases: disabled",
    "MLflow: written to a file store in the overlay",
    "TensorBoard: event files stay in the overlay",
    "ClearML: offline",
    "neptune.ai and SwanLab: disabled",
)
_ENVIRONMENT = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file:///tmp/forebay-mlruns",  # in the overlay, and not created as it is no text
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
}


def set_environment(environment: MutableMapping[str, str]) -> None:
    """Set the variables by which these services are disabled, for the program and its processes."""
    environment.update(_ENVIRONMENT)

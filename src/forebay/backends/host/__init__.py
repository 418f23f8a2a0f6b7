"""The backend of the host: native queue threads over host memory."""

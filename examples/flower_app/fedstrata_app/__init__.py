"""An experiment of fedstrata as a Flower app."""

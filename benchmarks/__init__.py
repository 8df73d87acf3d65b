"""How fast and how large fedstrata is, beside other ways to run the same federation."""

"""What every part must satisfy, ours and yours: `check_part(MyPart())` raises an AssertionError that says why not."""

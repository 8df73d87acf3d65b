"""What the commands do, once `cli` knows what was said: it imports these when a command runs, and not for its help."""

from fedstrata import reproduce as reproduce  # the parts of published figures are known to every command

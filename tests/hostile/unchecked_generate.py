"""`python -m tests.hostile.unchecked_generate`: the service, but any number passes its checks."""

import math
from unittest.mock import patch

from generate_service import item_values
from generate_service.__main__ import main

if __name__ == "__main__":
    with patch.object(item_values, "MAX_ITEM_VALUE", math.inf):
        main()

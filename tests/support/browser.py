"""Wait for a page in a browser."""

import time


def wait_until(page, expression, seconds=60):
    """Wait until a JavaScript expression is true.

    Playwright's wait_for_function evaluates strings inside the page, which the content security
    policy of our pages forbids. `page.evaluate` works from outside.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}"
        page.wait_for_timeout(50)

"""The last look at an approval, where it counts: in the activity that acts, however long that waited for a worker."""

from datetime import datetime

from relight.activities.contracts import Done
from relight.activities.site import Site
from relight.domain.incidents import Outcome


def lapsed(site: Site, until: datetime | None) -> Done | None:
    """Set where what was approved must not be written any more; to be asked right before the write.

    Args:
        site: has the clock.
        until: by when it must have begun; None: nobody had to approve it.
    """
    now = site.clock()
    if until is None or now <= until:
        return None
    text = f"the approval held until {until:%H:%M:%S} UTC, and nothing had begun by then"
    return Done(outcome=Outcome.EXPIRED, text=text, at=now)

"""What a GPU hour costs, as written in the file: without it no money is shown."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class PriceSettings(BaseModel):
    """Prices of GPU hours."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpu_hour: Price | None = None
    """Where `partitions` does not say; None: not known."""
    currency: str = Field(default="EUR", pattern=r"^([A-Za-z]{1,8}|[$€£¥₩₹])$")
    """As it is printed behind the amount."""
    partitions: dict[str, Price] = {}
    """By partition."""

    def of(self, partition: str) -> float | None:
        """What a GPU hour costs there; None where nobody said."""
        return self.partitions.get(partition, self.gpu_hour)

"""What a TRL function logs in one call: log_metric(name, value) and log_extra(column, values)."""

from tandem_worker.outcomes import MAX_NAMES, NotFinite, WrongCount, WrongType, checked_name, column_value, finite

MAX_VALUES = 4096  # of all metrics of one call


def _made_room(lists, name, what):
    """The list of that name. A call that asks for too many fails, and what it has logged by then is kept."""
    if name not in lists and len(lists) >= MAX_NAMES:
        raise WrongType(f"{what} was given more than {MAX_NAMES} names in one call of the reward")
    return lists.setdefault(name, [])


class Log:
    def __init__(self, num_samples):
        self._num_samples = num_samples
        self._num_values = 0
        self.metrics = {}
        self._columns = {}

    def metric(self, name, value):
        """A number, averaged over all calls of a rollout; what is not finite has no part in the average."""
        try:
            value = finite(value, f"log_metric({name!r}): the value")
        except NotFinite:
            return
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise WrongType(f"log_metric was called more than {MAX_VALUES} times in one call of the reward")
        _made_room(self.metrics, checked_name(name, "log_metric: the name"), "log_metric").append(value)

    def extra(self, column, values):
        """A value for each sample, shown beside it."""
        values = [column_value(value) for value in values]
        if len(values) != self._num_samples:
            raise WrongCount(f"log_extra({column!r}): {len(values)} values for {self._num_samples} samples")
        _made_room(self._columns, checked_name(column, "log_extra: the column"), "log_extra")[:] = values

    def of(self, i):
        """What goes with the grade of sample i."""
        result = {}
        if self._columns:
            result["columns"] = {name: values[i] for name, values in self._columns.items()}
        if self.metrics and i == 0:
            result["metrics"] = self.metrics
        return result

package kubeclient

import (
	"fmt"
	"time"
)

// CompletePause gives a pause of zero, an option of a part that talks to the API server, its default. A negative one
// is an error.
func CompletePause(name string, value *time.Duration, byDefault time.Duration) error {
	if *value < 0 {
		return fmt.Errorf("pause %s is %s and must not be negative", name, *value)
	}
	if *value == 0 {
		*value = byDefault
	}
	return nil
}

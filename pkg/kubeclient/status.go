package kubeclient

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// FieldLastValid is the field of a MetaRouter's status that holds the last valid spec of a refused one.
const FieldLastValid = "lastValid"

// LastValid returns the last valid spec in a MetaRouter's status, if there is one. It is not a copy.
func LastValid(u *unstructured.Unstructured) (map[string]any, bool) {
	status, _ := u.Object["status"].(map[string]any)
	spec, ok := status[FieldLastValid].(map[string]any)
	return spec, ok
}

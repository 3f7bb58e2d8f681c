package meshca

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// readToken returns what is in the file now.
func readToken(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err == nil {
		token := bytes.TrimSpace(data)
		if len(token) > 0 && !bytes.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return string(token), nil
		}
		err = fmt.Errorf("%s holds no token", file) // and what it holds could be no header
	}
	return "", &Error{Reason: ReasonToken, cause: err, text: "our token cannot be read",
		todo: "mount a projected service account token of the audience that the CA expects (istiod: istio-ca)"}
}

// claims are whose a service account token is.
type claims struct {
	namespace, account string
}

// parseClaims reads a service account token without verifying it: that is the part of the CA, and what the
// CA gives is compared with it. Nothing of the token is in the error.
func parseClaims(token string) (claims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}, fmt.Errorf("not a JWT: it has %d parts, not 3", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return claims{}, errors.New("not a JWT: its second part is not base64")
	}
	var body struct {
		Kubernetes struct {
			Namespace      string `json:"namespace"`
			ServiceAccount struct {
				Name string `json:"name"`
			} `json:"serviceaccount"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(payload, &body); err != nil {
		return claims{}, errors.New("not a JWT of a service account: its claims are not the JSON expected")
	}
	out := claims{body.Kubernetes.Namespace, body.Kubernetes.ServiceAccount.Name}
	if out.namespace == "" || out.account == "" {
		return claims{}, errors.New("the JWT has no claim kubernetes.io with namespace and serviceaccount")
	}
	return out, nil
}

package configfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/watchproxy/watchproxy/cmd/watchproxy/kubeconfig"
	"github.com/watchproxy/watchproxy/config"
)

// checkFiles checks the files named in a configuration.
func checkFiles(c *config.ProxyConfiguration, now time.Time) (errs field.ErrorList) {
	chain := func(data []byte) string { return wrongChain(data, now) }
	cas := func(data []byte) string { return wrongCAs(data, now) }
	if c.TLS != nil {
		path := field.NewPath("tls")
		certificate, wrong := checkFile(path.Child("certFile"), c.TLS.CertFile, chain)
		errs = append(errs, wrong...)
		key := func(data []byte) string { return wrongKey(certificate, data) }
		_, wrong = checkFile(path.Child("privateKeyFile"), c.TLS.PrivateKeyFile, key)
		errs = append(errs, wrong...)
	}
	_, wrong := checkFile(field.NewPath("authentication", "x509", "clientCAFile"), c.Authentication.X509.ClientCAFile, cas)
	errs = append(errs, wrong...)
	_, wrong = checkFile(field.NewPath("upstream", "caFile"), c.Upstream.CAFile, cas)
	errs = append(errs, wrong...)
	errs = append(errs, c.Audit.CheckPolicy(field.NewPath("audit"))...)
	if c.Upstream.Kubeconfig != "" {
		errs = append(errs, checkKubeconfig(field.NewPath("upstream"), &c.Upstream, now)...)
	}
	return errs
}

// checkFile reads the file named in a field, if any. wrong returns the error of its content, or "".
func checkFile(path *field.Path, file string, wrong func(content []byte) string) ([]byte, field.ErrorList) {
	if file == "" {
		return nil, nil
	}
	content, err := os.ReadFile(file)
	var why string
	switch {
	case err == nil:
		why = wrong(content)
	case errors.Is(err, fs.ErrNotExist):
		why = "there is no such file: create it, or name another one; relative paths are relative to the working directory"
	case errors.Is(err, fs.ErrPermission):
		why = "the file cannot be read by this user: change its owner or mode"
	default:
		if reason, ok := errors.AsType[*fs.PathError](err); ok {
			err = reason.Err
		}
		why = fmt.Sprintf("the file cannot be read (%v): name a PEM file", err)
	}
	if why != "" {
		return content, field.ErrorList{field.Invalid(path, file, why)}
	}
	return content, nil
}

// wrongKey returns the error of a private key, or "". If the certificate can be read, the key must
// match it.
func wrongKey(certificate, key []byte) string {
	if _, err := keyutil.ParsePrivateKeyPEM(key); err != nil {
		return "there is no private key in PEM in it; a key must not be encrypted"
	}
	if _, err := cert.ParseCertsPEM(certificate); err != nil {
		return ""
	}
	if _, err := tls.X509KeyPair(certificate, key); err != nil {
		return fmt.Sprintf("the key does not belong to the certificate (%v): name the key that the certificate was made for", err)
	}
	return ""
}

// wrongChain returns the error of a certificate and its chain, or "".
func wrongChain(data []byte, now time.Time) string {
	chain, err := cert.ParseCertsPEM(data)
	if err != nil {
		return fmt.Sprintf("there is no certificate in PEM in it (%v)", err)
	}
	for _, c := range chain {
		if why := wrongTime(c, now); why != "" {
			return why
		}
	}
	return ""
}

// wrongCAs returns the error of CAs, or "". During a replacement of CAs, an old CA may have expired
// before it is removed. So one valid CA is enough.
func wrongCAs(data []byte, now time.Time) string {
	all, err := cert.ParseCertsPEM(data)
	if err != nil {
		return fmt.Sprintf("there is no CA certificate in PEM in it (%v)", err)
	}
	if slices.ContainsFunc(all, func(c *x509.Certificate) bool { return wrongTime(c, now) == "" }) {
		return ""
	}
	return wrongTime(all[0], now)
}

func wrongTime(c *x509.Certificate, now time.Time) string {
	switch {
	case now.After(c.NotAfter):
		return fmt.Sprintf("the certificate of %q expired at %s: renew it", c.Subject, c.NotAfter.Format(time.RFC3339))
	case now.Before(c.NotBefore):
		return fmt.Sprintf("the certificate of %q is not valid before %s: check the clock, or use an earlier one", c.Subject, c.NotBefore.Format(time.RFC3339))
	}
	return ""
}

// checkKubeconfig checks upstream's contexts and their certificates.
func checkKubeconfig(path *field.Path, u *config.Upstream, now time.Time) (errs field.ErrorList) {
	at := path.Child("kubeconfig")
	if _, errs := checkFile(at, u.Kubeconfig, func([]byte) string { return "" }); len(errs) > 0 {
		return errs
	}
	fail := func(at *field.Path, value, why string) { errs = append(errs, field.Invalid(at, value, why)) }
	one := func(at *field.Path, value, name string) {
		rc, err := kubeconfig.ClientConfig(u.Kubeconfig, name)
		if err == nil {
			err = rest.LoadTLSFiles(rc)
		}
		if err != nil {
			fail(at, value, err.Error())
			return
		}
		if len(rc.CAData) > 0 {
			if why := wrongCAs(rc.CAData, now); why != "" {
				fail(at, value, "certificate-authority: "+why)
			}
		}
		if len(rc.CertData) == 0 {
			return
		}
		if why := wrongChain(rc.CertData, now); why != "" {
			fail(at, value, "client-certificate: "+why)
		} else if why := wrongKey(rc.CertData, rc.KeyData); why != "" {
			fail(at, value, "client-key: "+why)
		}
	}
	for i, name := range u.Contexts {
		if name != "" {
			one(path.Child("contexts").Index(i), name, name)
		}
	}
	switch {
	case len(u.Contexts) > 0:
	case u.Context != "":
		one(path.Child("context"), u.Context, u.Context)
	default:
		one(at, u.Kubeconfig, "")
	}
	return errs
}

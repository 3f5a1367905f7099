// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func issue(t *testing.T, dir string, s Subject) (*x509.Certificate, *x509.CertPool, string, string) {
	t.Helper()
	ca, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile, err := ca.Issue(dir, "pair", s)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return pair.Leaf, roots, certFile, keyFile
}

func TestClientCertificateNamesUserAndGroupsAndServesNothing(t *testing.T) {
	cert, roots, _, _ := issue(t, t.TempDir(), Subject{User: "system:node:node-a", Groups: []string{"system:nodes"}})
	if cert.Subject.CommonName != "system:node:node-a" || !slices.Equal(cert.Subject.Organization, []string{"system:nodes"}) {
		t.Errorf("subject is %s", cert.Subject)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("as a client: %v", err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err == nil {
		t.Error("a client certificate serves")
	}
}

func TestServerCertificateCoversNamesAndAddresses(t *testing.T) {
	cert, roots, _, _ := issue(t, t.TempDir(), Subject{User: "kube-apiserver", Server: []string{"kubernetes.default", "10.77.0.1"}})
	for _, name := range []string{"kubernetes.default", "10.77.0.1"} {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatExistsIsKept(t *testing.T) {
	dir := t.TempDir()
	first, _, _, _ := issue(t, dir, Subject{User: "a"})
	second, _, _, _ := issue(t, dir, Subject{User: "a"})
	if !first.Equal(second) {
		t.Error("the certificate was issued again")
	}
}

func TestWhatAKilledRunLeftHalfIsMadeAnew(t *testing.T) {
	for name, damage := range map[string]func(dir, cert, key string) error{
		"the key is missing":       func(_, _, key string) error { return os.Remove(key) },
		"the certificate is empty": func(_, cert, _ string) error { return os.WriteFile(cert, nil, 0o600) },
		"the authority is another": func(dir, _, _ string) error { return os.Remove(filepath.Join(dir, "ca.crt")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first, _, certFile, keyFile := issue(t, dir, Subject{User: "a"})
			if err := damage(dir, certFile, keyFile); err != nil {
				t.Fatal(err)
			}
			second, roots, _, _ := issue(t, dir, Subject{User: "a"})
			if first.Equal(second) {
				t.Error("the old certificate was kept")
			}
			if _, err := second.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSigningKeyIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	private, public, err := SigningKey(dir, "sa")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(private)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := SigningKey(dir, "sa"); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(private)
	if err != nil || string(before) != string(after) {
		t.Errorf("the key changed (%v)", err)
	}
	if der, err := readPEM(public); err != nil {
		t.Error(err)
	} else if _, err := x509.ParsePKIXPublicKey(der); err != nil {
		t.Error(err)
	}
}

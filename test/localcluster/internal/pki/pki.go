// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pki makes the keys and certificates of a local cluster: one
// certificate authority that signs everything, client certificates whose
// subjects are the users that Kubernetes' own roles are bound to, and the key
// of service account tokens. It imports only the standard library and
// renameio.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// validity is long enough for a cluster that a person forgot.
const validity = 10 * 365 * 24 * time.Hour

// Subject says whom a certificate is for.
type Subject struct {
	// User is the common name, for Kubernetes the user's name.
	User string
	// Groups are the organisations, for Kubernetes the user's groups.
	Groups []string
	// Server lists the names and addresses that a server certificate
	// covers. Without any, the certificate is for clients only.
	Server []string
}

// Authority is a folder with a certificate authority.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// CertFile is the authority's certificate.
func (a *Authority) CertFile() string { return filepath.Join(a.dir, "ca.crt") }

// KeyFile is the authority's key.
func (a *Authority) KeyFile() string { return filepath.Join(a.dir, "ca.key") }

// Open loads the authority of a folder, and makes a new one when the folder
// has none or only half of one.
func Open(dir string) (*Authority, error) {
	a := &Authority{dir: dir}
	cert, key, err := load(a.CertFile(), a.KeyFile())
	if err == nil {
		a.cert, a.key = cert, key
		return a, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	template, err := newTemplate(Subject{User: "switchyard-localcluster"})
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign
	template.ExtKeyUsage = nil
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	if err := save(a.CertFile(), a.KeyFile(), der, signer); err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	a.key = signer
	return a, nil
}

// Issue writes NAME.crt and NAME.key into dir and returns their paths. A pair
// that this authority issued is kept.
func (a *Authority) Issue(dir, name string, subject Subject) (certFile, keyFile string, err error) {
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if cert, _, err := load(certFile, keyFile); err == nil && cert.CheckSignatureFrom(a.cert) == nil {
		return certFile, keyFile, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", fmt.Errorf("issue certificate for %s: %w", subject.User, err)
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("issue certificate for %s: %w", subject.User, err)
	}
	template, err := newTemplate(subject)
	if err != nil {
		return "", "", fmt.Errorf("issue certificate for %s: %w", subject.User, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, signer.Public(), a.key)
	if err != nil {
		return "", "", fmt.Errorf("issue certificate for %s: %w", subject.User, err)
	}
	if err := save(certFile, keyFile, der, signer); err != nil {
		return "", "", fmt.Errorf("issue certificate for %s: %w", subject.User, err)
	}
	return certFile, keyFile, nil
}

// SigningKey makes the key pair NAME.key and NAME.pub, without a certificate,
// unless dir has it.
func SigningKey(dir, name string) (keyFile, publicFile string, err error) {
	keyFile, publicFile = filepath.Join(dir, name+".key"), filepath.Join(dir, name+".pub")
	_, keyErr := os.Stat(keyFile)
	_, publicErr := os.Stat(publicFile)
	if keyErr == nil && publicErr == nil {
		return keyFile, publicFile, nil
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("create signing key %s: %w", name, err)
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return "", "", fmt.Errorf("create signing key %s: %w", name, err)
	}
	err = writeKey(keyFile, signer)
	if err == nil {
		err = writePEM(publicFile, "PUBLIC KEY", public, 0o644)
	}
	if err != nil {
		return "", "", fmt.Errorf("create signing key %s: %w", name, err)
	}
	return keyFile, publicFile, nil
}

func newTemplate(subject Subject) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: subject.User, Organization: subject.Groups},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(validity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(subject.Server) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, name := range subject.Server {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return template, nil
}

func load(certFile, keyFile string) (*x509.Certificate, crypto.Signer, error) {
	certDER, err := readPEM(certFile)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := readPEM(keyFile)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return nil, nil, err
	}
	key, err := x509.ParseECPrivateKey(keyDER)
	if err != nil {
		return nil, nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("key does not belong to certificate")
	}
	return cert, key, nil
}

func readPEM(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", path)
	}
	return block.Bytes, nil
}

// save writes the key first: a pair that was cut short has no certificate, or
// one that does not match, and is made anew.
func save(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writeKey(keyFile, key); err != nil {
		return err
	}
	return writePEM(certFile, "CERTIFICATE", der, 0o644)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return renameio.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

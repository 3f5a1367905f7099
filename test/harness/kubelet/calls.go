// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// Result is the outcome for one claim of a call.
type Result struct {
	Devices []*drapb.Device
	Err     error
}

// Prepare makes one NodePrepareResources call for the claims. The error is that of the call as a
// whole; each claim has its own Result, by UID.
func (k *Kubelet) Prepare(ctx context.Context, claims ...*resourceapi.ResourceClaim) (map[types.UID]Result, error) {
	p, err := k.newest()
	if err != nil {
		return nil, err
	}
	response, err := p.client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: references(claims)})
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources: %w", err)
	}
	results := make(map[types.UID]Result, len(claims))
	for _, claim := range claims {
		answer, ok := response.Claims[string(claim.UID)]
		if !ok {
			return nil, fmt.Errorf("NodePrepareResources has no answer for claim %s/%s", claim.Namespace, claim.Name)
		}
		results[claim.UID] = Result{Devices: answer.Devices, Err: asError(answer.Error)}
	}
	return results, nil
}

// PrepareOne prepares one claim.
func (k *Kubelet) PrepareOne(ctx context.Context, claim *resourceapi.ResourceClaim) ([]*drapb.Device, error) {
	results, err := k.Prepare(ctx, claim)
	if err != nil {
		return nil, err
	}
	return results[claim.UID].Devices, results[claim.UID].Err
}

// Unprepare makes one NodeUnprepareResources call for the claims. The error joins that of the call
// and those of the claims.
func (k *Kubelet) Unprepare(ctx context.Context, claims ...*resourceapi.ResourceClaim) error {
	p, err := k.newest()
	if err != nil {
		return err
	}
	response, err := p.client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: references(claims)})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources: %w", err)
	}
	var errs []error
	for _, claim := range claims {
		answer, ok := response.Claims[string(claim.UID)]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("NodeUnprepareResources has no answer for claim %s/%s", claim.Namespace, claim.Name))
		case answer.GetError() != "":
			errs = append(errs, fmt.Errorf("unprepare claim %s/%s: %s", claim.Namespace, claim.Name, answer.GetError()))
		}
	}
	return errors.Join(errs...)
}

// Ping makes a NodePrepareResources call without claims: it returns when the plugin answers calls.
func (k *Kubelet) Ping(ctx context.Context) error {
	_, err := k.Prepare(ctx)
	return err
}

func references(claims []*resourceapi.ResourceClaim) []*drapb.Claim {
	references := make([]*drapb.Claim, 0, len(claims))
	for _, claim := range claims {
		references = append(references, &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)})
	}
	return references
}

func asError(message string) error {
	if message == "" {
		return nil
	}
	return errors.New(message)
}
